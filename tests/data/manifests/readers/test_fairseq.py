"""fairseq's lists, read and written: written lists are read again, also as fairseq reads them."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import soundfile
from recordings import RATE, check_conversion, check_signals, jsonl, noise, read, write

from asr_jax.cli.convert import main as convert
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers.fairseq import letters, write_fairseq
from asr_jax.data.manifests.utterances import Utterance

SIGNALS = [noise(seed, 1600 + seed) for seed in range(3)]


def lists(folder: Path, name: str = "train", **others: str | bytes) -> Path:
    """Writes a list as `wav2vec_manifest.py` does, and `SET.ltr` and `SET.wrd` of `others`."""
    root = folder / "corpus"
    rows = [f"{i}/{i}.flac\t{len(samples)}" for i, samples in enumerate(SIGNALS)]
    for i, samples in enumerate(SIGNALS):
        write(root / str(i) / f"{i}.flac", samples)
    path = folder / "lists" / f"{name}.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in (str(root), *rows)))
    for ending, content in others.items():
        path.with_suffix(f".{ending}").write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "others",
    [
        {"ltr": "W I E | G E H T | E S |\n\nG U T |\n"},
        {"wrd": "WIE GEHT ES\n\nGUT\n"},
        {"wrd": "WIE GEHT ES\r\n\r\nGUT\r\n", "ltr": "X |\n"},
    ],
)
def test_lists_with_letters_or_words(tmp_path: Path, others: dict[str, str]) -> None:
    path = lists(tmp_path, **others)
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["0/0.flac", "1/1.flac", "2/2.flac"]
    assert [utterance.text for utterance in utterances] == ["WIE GEHT ES", "", "GUT"]
    assert [utterance.duration_s for utterance in utterances] == [len(samples) / RATE for samples in SIGNALS]
    check_signals(utterances, SIGNALS)
    check_conversion(tmp_path, path)


def test_slices_of_a_zip(tmp_path: Path) -> None:
    """Paths have the form `FILE.zip:first byte:bytes`, as those of fairseq's audio zips."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i, samples in enumerate(SIGNALS):
            file = io.BytesIO()
            soundfile.write(file, samples, RATE, format="FLAC")
            archive.writestr(f"{i}.flac", file.getvalue())
        places = [(info.header_offset + 30 + len(info.filename), info.file_size) for info in archive.infolist()]
    rows = [f"a.zip:{first}:{num}\t{len(samples)}" for (first, num), samples in zip(places, SIGNALS, strict=True)]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join([str(tmp_path), *rows]) + "\n")
    path.with_suffix(".wrd").write_text("a\nb\nc\n")
    check_signals(read(tmp_path, path), SIGNALS)
    check_conversion(tmp_path, path)
    convert([str(path), str(tmp_path / "again" / "train.tsv")])
    check_signals(read(tmp_path, tmp_path / "again" / "train.tsv"), SIGNALS)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    texts = ["WIE GEHT  ES", "", "ÄÖ GUT"]
    lines = [{"audio_path": f"corpus/{i}/{i}.flac", "text": text} for i, text in enumerate(texts)]
    lists(tmp_path)
    out = tmp_path / "out" / "valid.tsv"
    convert([str(jsonl(tmp_path / "m.jsonl", *lines)), str(out)])
    rows = [f"{tmp_path}/corpus/{i}/{i}.flac"[1:] + f"\t{len(samples)}" for i, samples in enumerate(SIGNALS)]
    assert out.read_text().splitlines() == ["/", *rows]
    assert out.with_suffix(".wrd").read_text() == "WIE GEHT ES\n\nÄÖ GUT\n"
    assert out.with_suffix(".ltr").read_text() == "W I E | G E H T | E S |\n\nÄ Ö | G U T |\n"
    assert (out.parent / "dict.ltr.txt").read_text().splitlines()[:2] == ["| 5", "E 3"]
    utterances = read(tmp_path, out)
    assert [utterance.text for utterance in utterances] == ["WIE GEHT ES", "", "ÄÖ GUT"]
    check_signals(utterances, SIGNALS)


def test_what_lists_cannot_say_is_not_written(tmp_path: Path) -> None:
    for location in ("/a.flac#seconds=1.0+2.0", "/a.tar#bytes=512+100&name=a.flac", "/a.flac#channel=1", "/a\tb.flac"):
        with pytest.raises(UserError, match=r"utterance u .* is not a whole file"):
            write_fairseq(str(tmp_path / "a.tsv"), [Utterance("u", location, "a", 1.0)])
    assert not list(tmp_path.iterdir())


def test_sets_of_a_folder_share_one_dictionary(tmp_path: Path) -> None:
    lists(tmp_path)
    for name, text in (("train", "ABBA"), ("dev", "ZZ")):
        line = {"audio_path": "corpus/0/0.flac", "text": text}
        convert([str(jsonl(tmp_path / f"{name}.jsonl", line)), str(tmp_path / "out" / f"{name}.tsv")])
    assert (tmp_path / "out" / "dict.ltr.txt").read_text() == "A 2\nB 2\n| 1\n"
    assert (tmp_path / "out" / "dev.ltr").read_text() == "Z Z |\n"


def test_samples_are_those_of_the_header(tmp_path: Path) -> None:
    lists(tmp_path)
    line = {"audio_path": "corpus/1/1.flac", "text": "a", "duration": 0.1}
    convert([str(jsonl(tmp_path / "m.jsonl", line)), str(tmp_path / "out.tsv")])
    assert (tmp_path / "out.tsv").read_text().splitlines()[1].endswith("\t1601")


@pytest.mark.parametrize(
    ("rate_hz", "fields", "reason"),
    [
        (8000, {"text": "a"}, "has 8000 Hz; fairseq trains only on 16000 Hz"),
        (RATE, {"text": "a|b"}, r"has '\|' in its text \('a\|b'\)"),
        (RATE, {"tokens": [1, 2]}, "has token ids but no text"),
    ],
)
def test_what_fairseq_would_take_for_something_else(
    tmp_path: Path, rate_hz: int, fields: dict[str, Any], reason: str
) -> None:
    write(tmp_path / "a.wav", SIGNALS[0], rate_hz)
    manifest = jsonl(tmp_path / "m.jsonl", {"audio_path": "a.wav", "id": "u"} | fields)
    with pytest.raises(UserError, match=rf"utterance u .*{reason}"):
        convert([str(manifest), str(tmp_path / "out" / "a.tsv")])
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("ending", ["tsv", "ltr", "wrd"])
def test_a_cut_last_line_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("/r\n" + "a.flac\t16000\n" * 20)
    path.with_suffix(".ltr" if ending == "ltr" else ".wrd").write_text("A B | C D |\n" * 20)
    cut = path.with_suffix(f".{ending}")
    cut.write_text(cut.read_text()[:-3])
    utterances = read(tmp_path, path)
    assert len(utterances) == 19
    (rejected,) = utterances.rejected
    assert rejected.location == f"{path}:21"
    assert "the file may be truncated" in rejected.reason


def test_letters() -> None:
    assert letters("ab  c") == "a b | c |"
    assert letters(" ") == ""


def test_lists_of_different_lengths_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3 recordings, .*2 lines"):
        read(tmp_path, lists(tmp_path, wrd="a\nb\n"))


@pytest.mark.parametrize(
    ("row", "text", "reason"),
    [
        (b"x.flac", b"a", "'x.flac': expected a path, a tab and the number of samples"),
        (b"x.flac\tlong", b"a", "expected a path, a tab and the number of samples"),
        (b"x\xe9.flac\t1", b"a", "not UTF-8 (byte 0xe9 at 1)"),
        (b"x.flac\t16000", b"\xe9", "not UTF-8 (byte 0xe9 at 0)"),
    ],
)
@pytest.mark.parametrize("ending", ["wrd", "ltr"])
def test_a_broken_line_is_named_and_the_others_are_read(
    tmp_path: Path, row: bytes, text: bytes, reason: str, ending: str
) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(b"\n".join([b"/r", b"1.flac\t16000", row, *[b"2.flac\t16000"] * 12, b""]))
    path.with_suffix(f".{ending}").write_bytes(b"\n".join([b"b", text, *[b"c"] * 12, b""]))
    utterances = read(tmp_path, path)
    assert [utterance.text for utterance in utterances] == ["b"] + ["c"] * 12
    (rejected,) = utterances.rejected
    assert rejected.location == f"{path}:3"
    assert reason in rejected.reason
