"""The preparation of LibriSpeech, run as people run it, on a small copy of its layout."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from asr_jax.audio.io import write_flac
from asr_jax.data.manifest import Record, read_manifest


def add_chapter(root: Path, subset: str, speaker: str, lines: dict[str, str], audio: list[str]) -> None:
    chapter = root / subset / speaker / "7"
    chapter.mkdir(parents=True)
    for i, name in enumerate(audio):
        write_flac(chapter / f"{speaker}-7-{name}.flac", np.ones(1600 * (i + 1), np.int16), 16000)
    text = "".join(f"{speaker}-7-{name} {line}\n" for name, line in lines.items())
    (chapter / f"{speaker}-7.trans.txt").write_text(text)


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "prepare_librispeech.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("given", ["LibriSpeech", "."])
def test_manifests_of_what_is_there(tmp_path: Path, given: str) -> None:
    root = tmp_path / "LibriSpeech"
    add_chapter(root, "train-clean-100", "19", {"0000": "IT'S ONE", "0001": "TWO"}, ["0000", "0001"])
    add_chapter(root, "train-clean-360", "20", {"0000": "THREE"}, ["0000"])
    add_chapter(root, "train-other-500", "21", {"0000": "FOUR"}, ["0000"])
    add_chapter(root, "dev-other", "22", {"0000": "FIVE"}, ["0000"])
    done = prepare("--librispeech", tmp_path / given, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not there: dev-clean, test-clean, test-other" in done.stdout
    manifests = tmp_path / "out" / "manifests"
    names = {"train-clean-100", "train-clean-360", "train-other-500", "dev-other", "train-960"}
    assert {path.name for path in manifests.iterdir()} == {f"{name}.jsonl" for name in names}
    audio = str(root / "train-clean-100" / "19" / "7" / "19-7-0001.flac")
    expected = Record("19-7-0001", audio, "two", 0.2, "librispeech-19", "librispeech/train-clean-100")
    assert read_manifest(manifests / "train-clean-100.jsonl")[1] == expected
    texts = [record.text for record in read_manifest(manifests / "train-960.jsonl")]
    assert texts == ["it's one", "two", "three", "four"]
    assert not (tmp_path / "out" / "skipped.jsonl").exists()


def test_what_does_not_match_is_counted_and_named(tmp_path: Path) -> None:
    lines = {"0000": "ONE", "0002": "NO AUDIO", "0003": "BROKEN"}
    add_chapter(tmp_path, "dev-clean", "30", lines, ["0000", "0001", "0003"])
    (tmp_path / "dev-clean" / "30" / "7" / "30-7-0003.flac").write_bytes(b"broken")
    done = prepare("--librispeech", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "dev-clean: 1 skipped, no line in the transcript: 30-7-0001" in done.stdout
    assert "dev-clean: 1 skipped, in the transcript, but no such audio file: 30-7-0002" in done.stdout
    assert [record.id for record in read_manifest(tmp_path / "out" / "manifests" / "dev-clean.jsonl")] == ["30-7-0000"]
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [row["id"] for row in skipped] == ["30-7-0001", "30-7-0002", "30-7-0003"]
    assert "not audio" in skipped[2]["reason"]


@pytest.mark.parametrize(
    ("folders", "message"),
    [([], "is no folder"), (["in/else"], "has none of the subsets"), (["in/dev-clean"], "no utterance with audio")],
)
def test_nothing_to_prepare_is_said(tmp_path: Path, folders: list[str], message: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    done = prepare("--librispeech", tmp_path / "in", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
