"""WebDataset's tar shards: read in place, by stem, with all kinds of files beside the audio."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import soundfile
from recordings import RATE, check_conversion, check_signals, noise, read

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location

SIGNALS = [noise(seed, 1500 + seed) for seed in range(4)]


def flac(seed: int, kind: str = "FLAC") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SIGNALS[seed], RATE, format=kind)
    return file.getvalue()


def tar(path: Path, *members: tuple[str, bytes | str | dict]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            data = json.dumps(content) if isinstance(content, dict) else content
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def pairs(*seeds: int) -> list[tuple[str, bytes | str]]:
    """Members of utterances `0`, `1` … ."""
    return [member for i, seed in enumerate(seeds) for member in ((f"{i}.flac", flac(seed)), (f"{i}.txt", "a"))]


def test_audio_with_texts_json_and_tokens(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "train-000000.tar",
        ("00/utt-a.flac", flac(0)),
        ("00/utt-a.txt", "größe\n"),
        ("00/utt.b.FLAC", flac(1)),
        ("00/utt.json", {"text": "b", "duration": 0.09, "speaker_id": 7, "id": "own"}),
        ("01/utt.wav", flac(2, "WAV")),
        ("01/utt.transcript", "c"),
        ("01/utt.tokens", "4 2"),
        ("._utt.wav", b"of macOS"),
        ("__worker__.txt", "of WebDataset"),
        ("README", "no sample"),
    )
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["00/utt-a", "own", "01/utt"]
    assert [utterance.text for utterance in utterances] == ["größe", "b", "c"]
    assert [utterance.speaker for utterance in utterances] == ["", "7", ""]
    assert [utterance.labels for utterance in utterances] == [None, None, (4, 2)]
    assert [utterance.duration_s for utterance in utterances] == [1500 / RATE, 0.09, 1502 / RATE]
    check_signals(utterances, SIGNALS[:3])
    data = path.read_bytes()
    location = Location.parse(utterances[0].location)
    assert location.path == str(path)
    assert data[location.first_byte :][: location.num_bytes] == flac(0)
    assert not list((tmp_path / ".cache").rglob("*.bytes"))
    check_conversion(tmp_path, path)


def test_shards_by_pattern_and_by_folder(tmp_path: Path) -> None:
    for shard in range(2):
        tar(tmp_path / f"shard_{shard:04}.tar", *pairs(2 * shard, 2 * shard + 1))
    for path in (tmp_path / "shard_*.tar", tmp_path):
        utterances = read(tmp_path, path)
        assert [utterance.id for utterance in utterances] == ["0", "1", "0#2", "1#2"]
        check_signals(utterances, SIGNALS)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("x.txt", "a")], "no audio among .txt: expected one of .wav .flac"),
        ([("x.flac", flac(0))], "no text among .flac: expected .txt, or .json with a text"),
        ([("x.flac", flac(0)), ("x.txt", b"\xe9")], "x.txt: not UTF-8 (byte 0xe9 at 0)"),
        ([("x.flac", flac(0)), ("x.json", b"\xe9")], "x.json: not UTF-8 (byte 0xe9 at 0)"),
        ([("x.flac", flac(0)), ("x.json", "{")], "x.json: not JSON"),
        ([("x.flac", flac(0)), ("x.json", "[1]")], "x.json: [1]; expected a JSON object"),
        ([("x.flac", flac(0)), ("x.json", {"text": 1})], '"text" is 1; expected a string'),
        ([("x.flac", flac(0)), ("x.tok", "a")], 'tokens are "a"; expected ids'),
    ],
)
def test_a_broken_sample_is_named_and_the_others_are_read(tmp_path: Path, members: list, reason: str) -> None:
    good = pairs(*[0] * 10)
    utterances = read(tmp_path, tar(tmp_path / "a.tar", *good[:6], *members, *good[6:]))
    check_signals(utterances, [SIGNALS[0]] * 10)
    (rejected,) = utterances.rejected
    assert (rejected.id, rejected.location) == ("x", f"{tmp_path / 'a.tar'}: x")
    assert reason in rejected.reason


def test_cut_and_compressed_tars_are_named(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", *pairs(*[0] * 9))
    data = path.read_bytes()
    with tarfile.open(path) as archive:
        places = [(member.offset, member.offset_data + member.size) for member in archive]
    (begin, _), (_, end) = places[8], places[-1]
    end += -end % 512
    between, in_header, one_zero_block = data[:begin], data[: begin + 200], data[: end + 512]
    damaged = data[:begin] + b"x" * 512 + data[begin + 512 :]
    cut = (data[: len(data) // 2], between, in_header, data[:end], one_zero_block, damaged)
    for content in (*cut, b"no tar" * 200, b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a.tar: not a complete tar .* copy it again"):
            read(tmp_path, path)
    path.write_bytes(data + data)
    with pytest.raises(UserError, match=r"end at byte \d+"):
        read(tmp_path, path)
    path.write_bytes(data + bytes(99_999))  # padding of any length
    assert len(read(tmp_path, path)) == 9
    path.rename(tmp_path / "a.tar.gz")
    with pytest.raises(UserError, match="compressed"):
        read(tmp_path, tmp_path / "a.tar.gz")


def test_names_are_cut_at_the_first_dot_and_texts_lie_beside_their_audio(tmp_path: Path) -> None:
    members = [("u0.x.flac", flac(0)), ("u0.x.txt", "one"), ("u1.audio.flac", flac(1)), ("u1.text.txt", "two")]
    members += [("u2.flac", flac(2)), ("u2.meta.json", {"text": "three"})]
    utterances = read(tmp_path, tar(tmp_path / "a.tar", *members))
    assert [(utterance.id, utterance.text) for utterance in utterances] == [
        ("u0", "one"),
        ("u1", "two"),
        ("u2", "three"),
    ]
    check_signals(utterances, SIGNALS[:3])
