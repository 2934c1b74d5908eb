"""Inputs of transcription: files, folders, lists, manifests, patterns, standard input."""

import io
import json
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from recordings import jsonl, noise, write, write_av

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.audio_inputs import formats, listed, with_durations
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.utterances import Rejected, Utterance
from tests.support import approx


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Calls `listed` in a folder with some audio."""
    for name in ("a.wav", "in/b.flac", "in/deep/c.mp3", "in/deep/a.wav"):
        write(tmp_path / name, noise(0, 16000))
    write_av(tmp_path / "in/d.m4a", noise(0, 48000), "aac", 48000)
    (tmp_path / "in/notes.md").write_text("none")
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()

    def call(*inputs, stdin=b""):
        return listed(inputs, read_stdin=io.BytesIO(stdin).read, folder=str(kept))

    return call


def ids(entries):
    assert all(isinstance(entry, Utterance) for entry in entries), entries
    return [entry.id for entry in entries]


IN = ["b.flac", "d.m4a", "deep/a.wav", "deep/c.mp3"]


def test_files_and_folders_in_order_with_names_of_their_own(given):
    found = given("a.wav", "in", "in/deep/a.wav")
    assert ids(found) == ["a.wav", *IN, "a.wav#2"]
    assert [entry.location for entry in found][::5] == ["a.wav", "in/deep/a.wav"]
    for entry in with_durations(found):
        assert entry.duration_s == approx(1.0, abs=0.1)


def test_lists_have_a_path_on_each_line(given, tmp_path):
    (tmp_path / "in" / "some.txt").write_text("b.flac\n\n../a.wav\na.wav#seconds=0.25+0.5\nin/deep\nno/such.wav\n")
    found = given("in/some.txt")
    places = [(entry.id, entry.location) for entry in found]
    assert places[:2] == [("b.flac", "in/b.flac"), ("../a.wav", "a.wav")]
    assert places[2:5] == [
        ("a.wav#seconds=0.25+0.5", "a.wav#seconds=0.25+0.5"), ("in/deep/a.wav", "in/deep/a.wav"),
        ("in/deep/c.mp3", "in/deep/c.mp3"),
    ]  # fmt: skip
    measured = with_durations(found)
    assert measured[2].duration_s == 0.5
    assert measured[5] == Rejected("no/such.wav", "no/such.wav", "no such file")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        given("empty.txt")


def test_manifests_with_texts_or_without(given, tmp_path):
    lines = (
        {"id": "x", "audio_path": "a.wav", "duration": 1.0},
        {"audio_path": "in/b.flac", "text": "b", "offset": 0.5},
    )
    jsonl(tmp_path / "m.jsonl", *lines, {"nothing": 1})
    *found, rejected = given("m.jsonl")
    assert ids(found) == ["x", "in/b.flac"]
    assert found[1].location == f"{tmp_path}/in/b.flac#seconds=0.5+"
    assert with_durations(found)[1].duration_s == 0.5
    assert 'no "audio_path"' in rejected.reason
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi" / "wav.scp").write_text(f"r1 {tmp_path}/a.wav\n")
    assert ids(given("kaldi")) == ["r1"]
    (tmp_path / "data.list").write_text(json.dumps({"key": "w1", "wav": f"{tmp_path}/a.wav", "txt": "a"}) + "\n")
    assert ids(given("data.list")) == ["w1"]
    inputs = [str(tmp_path / name) for name in ("m.jsonl", "kaldi", "data.list", "a.wav", "in", "*.wav")] + ["-"]
    assert [line.partition(": read as ")[2] for line in formats(inputs, ReadOptions(texts_may_lack=True))] == [
        "JSON (id, audio_path, duration)", "Kaldi data folder", "WeNet's list (key, wav, txt)",
    ]  # fmt: skip


def test_patterns_and_names_that_no_reader_knows(given, tmp_path):
    (tmp_path / "in" / "e.xyz").write_bytes((tmp_path / "a.wav").read_bytes())
    assert ids(given("in/*.flac", "in/e.xyz")) == ["b.flac", "e.xyz"]
    (gone,) = with_durations(given("gone.wav"))
    assert gone == Rejected("gone.wav", "gone.wav", "no such file")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="none has nothing to read"):
        given("none")


@pytest.mark.parametrize("name", ["a.wav", "in/b.flac", "in/deep/c.mp3", "in/d.m4a"])
def test_standard_input_of_audio(given, tmp_path, name):
    (entry,) = with_durations(given("-", stdin=(tmp_path / name).read_bytes()))
    assert entry.id == "stdin"
    assert entry.duration_s == approx(1.0, abs=0.1)


def test_standard_input_of_paths(given):
    assert ids(given("-", stdin=b"a.wav\nin\n\n")) == ["a.wav", *(f"in/{name}" for name in IN)]
    with pytest.raises(UserError, match="standard input is empty"):
        given("-")
    (entry,) = given("-", stdin=b"\xe4\xf6.wav\n")
    assert isinstance(entry, Rejected)


def raw(dtype, scale):
    return (np.sin(np.arange(4000) / 9) * scale).astype(dtype).tobytes()


RAW = {
    "16 bits": raw("<i2", 9000),
    "16 bits, big endian": raw(">i2", 9000),
    "silence, then paths": bytes(300) + b"\n.\n/\n~\nin\n",
    "32 bits": raw("<i4", 1 << 29),
    "floats": raw("<f4", 0.3),
    "8 bits": raw("i1", 90),
    "quiet 8 bits": raw("i1", 20),
    "one long line": b"a" * 5000,
}


@pytest.mark.parametrize("kind", RAW)
def test_raw_samples_are_not_paths(given, kind):
    with pytest.raises(UserError, match=r"neither a known audio format nor paths .*: raw samples need a header"):
        given("-", stdin=RAW[kind])


def test_paths_that_are_not_ascii_are_paths(given):
    entries = given("-", stdin="ä\u3000ö.wav\n音.wav\nbad\x01name\n\n".encode())
    assert len(entries) == 3


@contextmanager
def piped(content):
    """Path of a pipe that is read once, as of the shell's <(…)."""
    own, other = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(other, content), os.close(other)))
    writer.start()
    yield f"/dev/fd/{own}"
    writer.join()
    os.close(own)


@pytest.mark.parametrize("name", ["a.wav", "in/d.m4a"])
def test_a_pipe_of_audio_is_read_once(given, tmp_path, name):
    with piped((tmp_path / name).read_bytes()) as path:
        assert formats([path], ReadOptions()) == []
        (entry,) = with_durations(given(path))
    assert entry.id == os.path.basename(path)
    assert entry.duration_s == approx(1.0, abs=0.1)


def test_a_pipe_of_paths_or_of_anything_else(given):
    with piped(b"a.wav\nin/b.flac\n") as path:
        assert ids(given(path)) == ["a.wav", "in/b.flac"]
    with piped(b"") as path, pytest.raises(UserError, match=f"{path} is empty: expected audio"):
        given(path)
    with piped(RAW["16 bits"]) as path, pytest.raises(UserError, match=f"{path} has neither a known audio format"):
        given(path)


def test_a_pipe_in_a_folder_or_a_list_is_rejected_by_name_and_nothing_waits(given, tmp_path):
    os.mkfifo(tmp_path / "in/pipe.wav")
    (tmp_path / "some.txt").write_text("in/pipe.wav\na.wav\n")
    for found, number in ((given("in"), 5), (given("some.txt"), 2)):
        measured = with_durations(found)
        assert len(measured) == number
        (rejected,) = (entry for entry in measured if isinstance(entry, Rejected))
        assert rejected.location == "in/pipe.wav"
        assert rejected.reason.startswith("a pipe or a device, not a file")
