"""JSON lines and arrays: every name of a field, every kind of content, and the messages for broken lines."""

import base64
import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from recordings import RATE, check_conversion, check_signals, jsonl, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.columns import Columns
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.json_lines import JSON
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

LINE = {"audio_path": "a.flac", "text": "hello", "duration": 1.5}
FRAMES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def only(utterances: Utterances) -> Utterance:
    assert len(utterances) == 1
    assert not utterances.rejected
    return utterances[0]


def test_all_fields_and_defaults(tmp_path: Path) -> None:
    full = LINE | {"id": "u1", "speaker": "s", "source": "set", "sample_rate": 16000, "tokens": [3, 1]}
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", full, LINE | {"id": 7, "speaker": None, "duration": 2}))
    audio = str(tmp_path / "a.flac")
    assert list(utterances) == [
        Utterance("u1", audio, "hello", 1.5, "s", "set", (3, 1)),
        Utterance("7", audio, "hello", 2.0),
    ]


@pytest.mark.parametrize("name", ["id", "utt_id", "utterance_id", "key", "sample_id"])
def test_names_of_the_id(tmp_path: Path, name: str) -> None:
    assert only(read(tmp_path, jsonl(tmp_path / "m.jsonl", LINE | {name: "u"}))).id == "u"


@pytest.mark.parametrize("name", ["text", "transcript", "transcription", "sentence", "normalized_text"])
def test_names_of_the_text(tmp_path: Path, name: str) -> None:
    line = {"audio_path": "a.flac", "duration": 1, name: "größe"}
    assert only(read(tmp_path, jsonl(tmp_path / "m.jsonl", line))).text == "größe"


@pytest.mark.parametrize("name", ["audio_path", "audio_filepath", "path", "file", "file_path", "audio"])
def test_names_of_the_audio(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.wav", noise(0))
    utterance = only(read(tmp_path, jsonl(tmp_path / "m.jsonl", {name: "a.wav", "text": ""})))
    assert (utterance.location, utterance.duration_s) == (str(tmp_path / "a.wav"), 3000 / RATE)


@pytest.mark.parametrize("name", ["tokens", "target", "targets", "labels", "label_ids"])
@pytest.mark.parametrize("ids", [[5, 0, 70000], "5 0 70000", "5, 0,70000"])
def test_token_ids_without_a_text(tmp_path: Path, name: str, ids: Any) -> None:
    utterance = only(read(tmp_path, jsonl(tmp_path / "m.jsonl", {"audio_path": "a.flac", "duration": 1, name: ids})))
    assert (utterance.labels, utterance.text) == ((5, 0, 70000), "")


@pytest.mark.parametrize(
    ("name", "value"), [("duration", 1.5), ("duration_s", 1.5), ("duration_sec", 1.5), ("duration_ms", 1500)]
)
def test_names_of_the_duration(tmp_path: Path, name: str, value: float) -> None:
    line = {"audio_path": "a.flac", "text": "", name: value}
    assert only(read(tmp_path, jsonl(tmp_path / "m.jsonl", line))).duration_s == 1.5


@pytest.mark.parametrize("name", ["features", "input_features", "feature", "fbank", "filterbank"])
def test_inline_features(tmp_path: Path, name: str) -> None:
    """Features are nested, or flat with rows and cols."""
    nested = {"id": "utt-1", name: FRAMES.tolist(), "tokens": [1, 2, 3], "text": "hello"}
    flat = {"id": "utt-2", name: FRAMES.ravel().tolist(), "rows": 5, "cols": 3, "tokens": "1 2 3"}
    path = jsonl(tmp_path / "m.jsonl", nested, flat)
    utterances = read(tmp_path, path)
    assert [utterance.labels for utterance in utterances] == [(1, 2, 3)] * 2
    assert [utterance.text for utterance in utterances] == ["hello", ""]
    assert [(r.num_frames, r.num_values, r.duration_s) for r in utterances] == [(5, 3, 0.05)] * 2
    check_signals(utterances, [FRAMES] * 2)
    check_conversion(tmp_path, path)


@pytest.mark.parametrize(
    ("rows", "cols"),
    [("rows", "cols"), ("num_frames", "feature_dim"), ("frames", "num_features"), ("feature_rows", "cols")],
)
def test_feature_files(tmp_path: Path, rows: str, cols: str) -> None:
    shape = {rows: 5, cols: 3, "text": "hello", "duration": 0.06}
    (tmp_path / "a.features.txt").write_text(" ".join(map(repr, FRAMES.ravel().tolist())))
    (tmp_path / "b.txt").write_text("\n".join(",".join(map(repr, row)) for row in FRAMES.tolist()))
    np.save(tmp_path / "c.npy", FRAMES.astype(np.float64))
    FRAMES.tofile(tmp_path / "d.f32")
    names = ["a.features.txt", "b.txt", "c.npy", "d.f32"]
    path = jsonl(tmp_path / "m.jsonl", *({"features_path": name} | shape for name in names))
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == names
    assert {utterance.duration_s for utterance in utterances} == {0.06}
    check_signals(utterances, [FRAMES] * 4)
    check_conversion(tmp_path, path)


def test_nemo_lines_with_offsets(tmp_path: Path) -> None:
    """Lines of NeMo's manifests: `audio_filepath duration text`, and `offset` into long recordings."""
    samples = noise(1, 5 * RATE)
    write(tmp_path / "wavs" / "long.wav", samples)
    line = {"audio_filepath": "wavs/long.wav", "text": "a b", "lang": "en"}
    path = jsonl(
        tmp_path / "train_manifest.json",
        line | {"duration": 5.0},
        line | {"duration": 1.25, "offset": 0.5},
        line | {"duration": 0.75, "offset": 0.0},
        line | {"offset": 4.5},
    )
    utterances = read(tmp_path, path)
    assert [utterance.duration_s for utterance in utterances] == [5.0, 1.25, 0.75, 0.5]
    assert [utterance.id for utterance in utterances] == ["wavs/long.wav"] + [f"wavs/long.wav#{i}" for i in (2, 3, 4)]
    check_signals(utterances, [samples, samples[8000:28000], samples[:12000], samples[72000:]])
    check_conversion(tmp_path, path)


def test_channels(tmp_path: Path) -> None:
    stereo = np.stack([noise(1), noise(2)], axis=1)
    write(tmp_path / "a.wav", stereo)
    line = {"audio_path": "a.wav", "text": "a"}
    path = jsonl(tmp_path / "m.jsonl", line | {"channel": 0}, line | {"channel": 1, "offset": 0.05, "duration": 0.1})
    utterances = read(tmp_path, path)
    check_signals(utterances, [stereo[:, 0], stereo[800:2400, 1]])
    check_conversion(tmp_path, path)


@pytest.mark.parametrize("name", ["m.json", "m.jsonl", "m.jsonl.gz", "m.json.gz"])
@pytest.mark.parametrize("is_array", [False, True])
def test_arrays_and_compressed_files(tmp_path: Path, name: str, is_array: bool) -> None:
    lines = [LINE, LINE | {"id": "b"}]
    content = json.dumps(lines, indent=1) if is_array else "".join(json.dumps(line) + "\n" for line in lines)
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [utterance.id for utterance in read(tmp_path, tmp_path / name)] == ["a.flac", "b"]


def test_byte_order_mark_windows_line_ends_and_blank_lines(tmp_path: Path) -> None:
    line = json.dumps(LINE | {"text": "zażółć"}, ensure_ascii=False)
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}\r\n".encode())
    assert [utterance.text for utterance in read(tmp_path, path)] == ["zażółć"] * 2


def test_several_objects_on_a_line(tmp_path: Path) -> None:
    line = [json.dumps(LINE | {"id": name}) for name in "abcd"]
    path = jsonl(tmp_path / "m.jsonl", *[line[0]] * 9, f"{line[1]} {line[2]}{line[3]}", f"{line[0]} x", f"{line[0]},")
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances][9:] == ["b", "c", "d"]
    assert [entry.location for entry in utterances.rejected] == [f"{path}:11", f"{path}:12"]
    assert "not JSON (Extra data" in utterances.rejected[0].reason


def test_audio_as_samples(tmp_path: Path) -> None:
    samples = noise(1, 400)
    lines = [
        {"audio": samples.tolist(), "sample_rate": RATE, "text": "a"},
        {
            "audio": {"array": (samples / 32768).tolist(), "sampling_rate": RATE},
            "text": "b",
            "begin": 0.01,
            "end": 0.02,
        },
    ]
    path = jsonl(tmp_path / "m.jsonl", *lines)
    check_signals(read(tmp_path, path), [samples, samples[160:320]])
    check_conversion(tmp_path, path)
    with pytest.raises(UserError, match=r"audio is 2 values without a rate; expected the rate in Hz in sample_rate"):
        read(tmp_path, jsonl(tmp_path / "n.jsonl", {"audio": [1, 2], "text": "a"}))


@pytest.mark.parametrize("indent", [None, 2])
def test_objects_that_contain_all_utterances_are_named_with_the_fix(tmp_path: Path, indent: int | None) -> None:
    segments = [{"sid": "s", "begin_time": 1.0, "end_time": 2.0, "text_tn": "A", "subsets": ["{XS}"]}]
    corpus = {"dataset": "GigaSpeech", "audios": [{"aid": "a", "path": "a.opus", "segments": segments}]}
    for name, content, message in (
        (
            "GigaSpeech.json",
            corpus,
            r"is the JSON of GigaSpeech or WenetSpeech, .* jq -c '.audios\[\] \| .*GigaSpeech.json > ",
        ),
        (
            "data.json",
            {"data": [LINE]},
            r"is one object with a list 'data': .* jq -c '.data\[\]' .*data.json > OUT.jsonl",
        ),
    ):
        (tmp_path / name).write_text(json.dumps(content, indent=indent))
        with pytest.raises(UserError, match=message):
            read(tmp_path, tmp_path / name)


def test_audio_cannot_be_text_in_json(tmp_path: Path) -> None:
    audio = base64.b64encode(b"RIFF").decode()
    with pytest.raises(UserError, match=r"m\.jsonl:1: audio "):
        read(tmp_path, jsonl(tmp_path / "m.jsonl", {"audio": {"bytes": audio}, "text": "a"}))


BROKEN_LINES = [
    ('{"audio_path": "a.flac", "te', "not JSON", "the file may be truncated"),
    ("[1]", "a JSON list", "expected an object"),
    (
        '{"audio_path": "C:\\data\\a.wav", "text": "a"}',
        "not JSON",
        "write / or \\\\ for the backslashes of Windows paths",
    ),
    ("{", "not JSON", "jq -c . IN > OUT writes one per line"),
    (json.dumps({"audiopath": "a", "text": "b"}), 'no "audio_path"', "did you mean 'audiopath'"),
    (json.dumps({"audio_path": "a"}), 'no "text"', '"duration": 1.5'),
    ("{}", 'no "audio_path" among its fields (none)', ""),
    (json.dumps(LINE | {"text": None}), '"text" is null', "expected {"),
    (json.dumps(LINE | {"text": 5}), '"text" is 5', "expected a string"),
    (json.dumps(LINE | {"audio_path": ""}), '"audio_path" is ""', "expected {"),
    (json.dumps(LINE | {"duration": "long"}), '"duration" is "long"', "number of seconds"),
    (json.dumps(LINE | {"duration": True}), '"duration" is true', "number of seconds"),
    ('{"audio_path": "a", "text": "b", "duration": NaN}', '"duration" is NaN', "finite"),
    ('{"audio_path": "a", "text": "b", "duration": 1e999}', '"duration" is Infinity', "finite"),
    (json.dumps(LINE | {"text": "\ud83d"}), '"text" is "\\ud83d"', "an unpaired surrogate"),
    (json.dumps(LINE | {"source": ["x"]}), '"source" is ["x"]', "expected a string"),
    (json.dumps(LINE | {"offset": -1}), '"offset" is -1 and "duration" is 1.5', "expected an offset of 0 or more"),
    (json.dumps(LINE | {"offset": 1, "duration": -2}), '"offset" is 1 and "duration" is -2', "a duration above 0"),
    (json.dumps(LINE | {"channel": -1}), '"channel" is -1', "whole number"),
    (json.dumps(LINE | {"tokens": ["he", "llo"]}), 'tokens are ["he", "llo"]', "whole numbers"),
    (json.dumps(LINE | {"tokens": [-1]}), "tokens are [-1]", "from 0"),
    (json.dumps(LINE | {"tokens": [2**40]}), "tokens are [1099511627776]", "whole numbers"),
    (json.dumps({"features": [[1, 2], [3]], "text": ""}), "ragged features", "the same number of values"),
    (json.dumps({"features": [1, 2, 3], "text": ""}), "flat features", "rows and cols"),
    (json.dumps({"features": [1, 2, 3], "rows": 2, "cols": 2, "text": ""}), "3 feature values", "2 × cols 2 = 4"),
    (json.dumps({"features": [[1, None]], "text": ""}), "1 feature values are NaN", ""),
    (json.dumps({"features": [], "text": ""}), "empty features", "frames × values"),
    (json.dumps({"features": [[[1]]], "text": ""}), "features of shape (1, 1, 1)", "frames × values"),
    (json.dumps({"features_path": "a.txt", "text": ""}), "need their shape", "rows and cols"),
]


@pytest.mark.parametrize(("line", "reason", "expected"), BROKEN_LINES)
def test_a_broken_line_is_named_and_the_others_are_read(tmp_path: Path, line: str, reason: str, expected: str) -> None:
    good = [LINE | {"id": str(i)} for i in range(10)]
    path = jsonl(tmp_path / "m.jsonl", *good[:4], line, *good[4:])
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [str(i) for i in range(10)]
    (rejected,) = utterances.rejected
    assert rejected.location == f"{path}:5"
    assert reason in rejected.reason
    assert expected in rejected.reason
    with pytest.raises(UserError, match=r"only.jsonl:1: "):
        read(tmp_path, jsonl(tmp_path / "only.jsonl", line))


def test_files_that_are_no_manifest_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(LINE).encode() + b"\n" + '{"text": "é"}'.encode("latin-1"))
    (tmp_path / "cut.json").write_text('[{"audio_path": "a.flac", ')
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}' * 99)[:40])
    for path, message in [
        (jsonl(tmp_path / "empty.jsonl"), "no utterances"),
        (jsonl(tmp_path / "blank.jsonl", "", "  "), "no utterances"),
        (tmp_path / "none.jsonl", "no such file"),
        (tmp_path / "cut.json", "not a JSON array .* the file may be truncated"),
        (tmp_path / "cut.jsonl.gz", "cannot be read as a manifest: .* check that it is complete"),
    ]:
        with pytest.raises(UserError, match=message):
            read(tmp_path, path)
    (rejected,) = read(tmp_path, latin).rejected
    assert (rejected.location, rejected.reason) == (
        f"{latin}:2",
        "not UTF-8 (byte 0xe9 at 10); save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT",
    )


VALUES = (None, True, 0, -3, 10**400, 0.5, math.inf, "", "a", "\ud800", [], [[]], {}, ["a"], {"bytes": 1}, [{"a": 1}])


def changed(value: Any, draw: random.Random) -> Any:
    """Replaces a value at a random place."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return draw.choice(VALUES)
    key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[key] = changed(value[key], draw)
    return value


def test_whatever_a_line_holds_it_is_read_or_refused(tmp_path: Path) -> None:
    """Values of any type at any place that readers use: no line may prevent the others from being read."""
    draw = random.Random(0)
    cut = {
        "id": "c", "start": 0, "duration": 1, "channel": 0,
        "supervisions": [{"start": 0, "duration": 1, "text": "a"}] * 2,
        "recording": {"sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "duration": 1},
    }  # fmt: skip
    lines = [
        LINE | {"offset": 0.5, "channel": 0, "tokens": [1, 2], "speaker": "s"},
        cut,
        {"transcript": "a", "files": [{"fname": "a.wav", "speed": 1}], "original_duration": 2},
        {"features": [[1, 2]], "rows": 1, "cols": 2, "tokens": [1]},
        {"features_path": "a", "rows": 1, "cols": 2, "text": "a"},
    ]
    changes = [changed(json.loads(json.dumps(lines[i % len(lines)])), draw) for i in range(3000)]
    path = jsonl(tmp_path / "m.jsonl", *map(json.dumps, changes))
    with Unpacked(str(tmp_path / "bytes")) as unpacked:
        entries = list(JSON.read(str(path), ReadOptions(unpacked=unpacked)))
    utterances = [entry for entry in entries if isinstance(entry, Utterance)]
    rejected = {entry.location for entry in entries if isinstance(entry, Rejected)}
    assert len(rejected) > 1000
    assert len(utterances) > 500
    assert rejected <= {f"{path}:{number}" for number in range(1, 3001)}
    columns = Columns.of(utterances)
    assert [columns.utterance(row).location for row in range(len(columns))] == [
        utterance.location for utterance in utterances
    ]
    assert all(str(Location.parse(utterance.location)) == utterance.location for utterance in utterances)


def test_real_manifests_of_the_seed(tmp_path: Path) -> None:
    """Examples from the systems' documentation, unchanged."""
    samples = noise(3)
    write(tmp_path / "audio" / "utt-1.wav", samples)
    (tmp_path / "utt-1.features.txt").write_text(" ".join(["0.5"] * 9600))
    path = jsonl(
        tmp_path / "m.jsonl",
        '{"id":"utt-1","features":[[0.1,0.2],[0.3,0.4]],"tokens":[1,2,3],"text":"hello"}',
        '{"id":"utt-1","features":[0.1,0.2,0.3,0.4],"rows":2,"cols":2,"tokens":"1 2 3"}',
        '{"id":"utt-1","features_path":"utt-1.features.txt","rows":120,"cols":80,"tokens":[1,2,3]}',
        '{"id":"utt-1","audio_path":"audio/utt-1.wav","tokens":[1,2,3],"text":"hello"}',
    )
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["utt-1", "utt-1#2", "utt-1#3", "utt-1#4"]
    assert [utterance.labels for utterance in utterances] == [(1, 2, 3)] * 4
    small = np.float32([[0.1, 0.2], [0.3, 0.4]])
    check_signals(utterances, [small, small, np.full((120, 80), 0.5, np.float32), samples])
    assert soundfile.info(tmp_path / "audio" / "utt-1.wav").duration == utterances[3].duration_s


def test_numbers_as_tables_write_them(tmp_path: Path) -> None:
    """Numbers are strings, or whole numbers are floats, as in columns of pandas with gaps."""
    line = {"features_path": "a.npy", "num_frames": 2.0, "feature_dim": "4", "tokens": ["1", 2.0, 3], "duration": "1.5"}
    (utterance,) = read(tmp_path, jsonl(tmp_path / "m.jsonl", line))
    assert (utterance.num_frames, utterance.num_values, utterance.labels, utterance.duration_s) == (
        2,
        4,
        (1, 2, 3),
        1.5,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"channel": 1.5}, '"channel" is 1.5; expected a whole number'),
        ({"channel": "left"}, '"channel" is "left"; expected a whole number'),
        ({"channel": True}, '"channel" is true; expected a whole number'),
        ({"duration": "nan"}, '"duration" is "nan"; expected a finite number'),
        ({"tokens": ["1", "b"]}, 'tokens are ["1", "b"]; expected ids'),
        ({"tokens": [1.5]}, "tokens are [1.5]; expected ids"),
        ({"tokens": 7}, "tokens are 7; expected ids"),
    ],
)
def test_what_is_no_such_number_is_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    lines = [{"audio_path": "a.wav", "text": "a", "duration": 1}] * 10
    (rejected,) = read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines, lines[0] | changes)).rejected
    assert reason in rejected.reason
