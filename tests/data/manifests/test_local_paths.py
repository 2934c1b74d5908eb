"""Paths with ~ and file:// are resolved; other URLs are refused as such."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.audio_inputs import listed
from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.locations import local_path
from asr_jax.data.manifests.reading import read_utterances


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_flac(tmp_path / "a b.flac", np.ones(1600, np.int16), 16000)
    return tmp_path


def test_paths_that_are_resolved(home):
    for path in (
        "~/a b.flac",
        f"file://{home}/a%20b.flac",
        f"file://localhost{home}/a b.flac",
        f"file:{home}/a%20b.flac",
        f"{home}/a b.flac",
    ):
        assert local_path(path) == f"{home}/a b.flac"
    assert local_path("a~b") == "a~b"


def test_manifests_and_inputs(home):
    paths = ("~/a b.flac", f"file://{home}/a%20b.flac", f"file:{home}/a%20b.flac")
    lines = [{"audio_path": path, "text": "a"} for path in paths]
    lines += [{"audio_path": f"s3://bucket/{i}.wav", "text": "a", "duration": 1.0} for i in range(2)]
    (home / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in ("~/train.jsonl", f"file://{home}/train.jsonl"):
        utterances = read_utterances([path])
        assert [utterance.location for utterance in utterances] == [f"{home}/a b.flac"] * 3
        assert [entry.location for entry in utterances.rejected] == ["s3://bucket/0.wav", "s3://bucket/1.wav"]
        assert utterances.rejected[0].reason.startswith("s3:// addresses are not read: download the files")
    with pytest.raises(UserError, match=r"s3://host/train.jsonl: s3:// addresses are not read"):
        resolve(["s3://host/train.jsonl"])


def test_inputs_of_transcription(home):
    (home / "list.txt").write_text(f"~/a b.flac\nfile://{home}/a%20b.flac\ngs://bucket/a.wav\n")
    entries = listed(["~/list.txt", "~/a b.flac"], read_stdin=lambda num: b"", folder=os.devnull)
    assert [entry.location for entry in entries] == [f"{home}/a b.flac"] * 2 + ["gs://bucket/a.wav", f"{home}/a b.flac"]
    assert "gs:// addresses are not read" in entries[2].reason


def test_texts_without_audio_are_named(home):
    folder = home / "folder"
    folder.mkdir()
    write_flac(folder / "a.flac", np.ones(1600, np.int16), 16000)
    for name in ("a", "lonely", "README"):
        (folder / f"{name}.txt").write_text("text")
    utterances = read_utterances([str(folder)])
    assert [utterance.id for utterance in utterances] == ["a.flac"]
    assert [(entry.id, entry.reason) for entry in utterances.rejected] == [
        ("lonely.txt", "a text without audio beside it")
    ]


def test_a_duration_of_0_is_unknown(home):
    (home / "train.jsonl").write_text(json.dumps({"audio_path": "a b.flac", "text": "a", "duration": 0}) + "\n")
    assert read_utterances([home / "train.jsonl"])[0].duration_s == 0.1


def test_paths_of_windows(home):
    write_flac(home / "c\\d.flac", np.ones(1600, np.int16), 16000)  # a legal name here
    (home / "wavs").mkdir()
    write_flac(home / "wavs" / "e.flac", np.ones(1600, np.int16), 16000)
    paths = [
        "wavs\\e.flac",
        ".\\wavs\\e.flac",
        "c\\d.flac",
        "C:\\data\\e.flac",
        "D:/data/e.flac",
        "wavs\\f.flac",
        "C:\new",
    ]
    lines = [{"audio_path": path, "text": "a"} for path in paths]
    (home / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    utterances = read_utterances([home / "train.jsonl"])
    found = [f"{home}/wavs/e.flac", f"{home}/wavs/e.flac", f"{home}/c\\d.flac"]
    assert [utterance.location for utterance in utterances] == found
    assert [(entry.location, entry.reason.partition(",")[0]) for entry in utterances.rejected] == [
        *((path, "a path of Windows") for path in paths[3:6]), ("C:\\new", "a path of Windows"),
    ]  # fmt: skip
    assert "whose backslashes JSON reads as control characters" in utterances.rejected[3].reason
    (home / "list.txt").write_text("".join(f"{path}\n" for path in paths[:5]))
    entries = listed([str(home / "list.txt")], read_stdin=lambda num: b"", folder=os.devnull)
    assert [entry.location for entry in entries] == [*found, *paths[3:5]]
    assert "jq -c" in entries[3].reason
