"""Inputs of transcription: files, folders, lists, manifests, patterns, standard input."""

import io
import json

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
