"""Identity of recordings, and files that replace others of equal size and time."""

import json
import os
import time
from pathlib import Path

import pytest
from recordings import jsonl, noise, read, write

from asr_jax.data.manifests.identity import Identity, digest_of_recordings, identities
from asr_jax.data.manifests.utterances import Rejected, Utterance


def replaced(file: Path, content: bytes) -> None:
    """Replaces a file by another one of equal size and time, as `cp -p` does."""
    before, other = file.stat(), file.with_name("other")
    time.sleep(0.02)  # times of file systems have steps of some milliseconds
    other.write_bytes(content)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def identity(location: str | Path, text: str = "", own: Path | None = None) -> Identity:
    [(_, found)] = identities([Utterance("x", str(location), text)], with_texts=bool(text), own=own)
    return found


def test_files_that_replace_others_of_equal_size_and_time_are_read_again(tmp_path: Path) -> None:
    audio = write(tmp_path / "a.wav", noise(1, 1600))
    line = {"audio_path": "a.wav", "text": "first"}
    manifest = jsonl(tmp_path / "m.jsonl", line)
    assert [each.text for each in read(tmp_path, manifest)] == ["first"]
    replaced(manifest, manifest.read_bytes().replace(b"first", b"other"))
    assert [each.text for each in read(tmp_path, manifest)] == ["other"]
    other = write(tmp_path / "b.wav", noise(1, 1600), rate_hz=8000).read_bytes()
    replaced(audio, other)
    assert [each.duration_s for each in read(tmp_path, manifest)] == [0.2]


def test_a_recording_is_the_same_by_its_state_or_by_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"audio of a")
    before = json.loads(json.dumps(identity(file).to_json()))
    assert identity(file).is_of(before)
    os.utime(file, ns=(1, 1))
    assert identity(file).is_of(before)
    assert identity(file.rename(tmp_path / "b.wav")).is_of(before)
    assert not identity(f"{tmp_path}/b.wav#channel=1").is_of(before)
    replaced(tmp_path / "b.wav", b"audio of b")
    assert not identity(tmp_path / "b.wav").is_of(before)
    assert not identity(tmp_path / "none.wav").is_of(before)
    assert not identity(tmp_path / "none.wav").exists
    assert not identity(tmp_path / "b.wav").is_of({})


def test_parts_of_an_archive_are_the_same_wherever_they_are_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"header.first.second")
    before = identity(f"{tmp_path}/a.tar#bytes=7+5").to_json()
    (tmp_path / "a.tar").write_bytes(b"another header.first.second")
    assert identity(f"{tmp_path}/a.tar#bytes=15+5").is_of(before)
    assert not identity(f"{tmp_path}/a.tar#bytes=21+6").is_of(before)


def test_the_text_belongs_to_an_alignment(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"audio")
    before = identity(tmp_path / "a.wav", "two words").to_json()
    assert identity(tmp_path / "a.wav", "two words").is_of(before)
    assert not identity(tmp_path / "a.wav", "two word").is_of(before)


def test_audio_that_the_command_has_unpacked_is_known_by_its_bytes(tmp_path: Path) -> None:
    """Its folder is another one in each call."""
    for name, content in (("one", b"audio"), ("two", b"audio"), ("three", b"other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.audio").write_bytes(content)
    first, same, other = (
        identity(tmp_path / name / "0.audio", own=tmp_path / name) for name in ("one", "two", "three")
    )
    assert same.is_of(first.to_json())
    assert not other.is_of(first.to_json())
    assert other.exists


@pytest.mark.parametrize("change", ["audio", "text", "id", "order", "another"])
def test_the_digest_of_a_job_depends_on_its_recordings(change: str, tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"audio")
    entries = [Utterance("a", f"{tmp_path}/a.wav", "a"), Utterance("b", f"{tmp_path}/b.wav"), Rejected("c", "c", "no")]
    before = digest_of_recordings(entries)
    assert digest_of_recordings(entries) == before
    match change:
        case "audio":
            replaced(tmp_path / "b.wav", b"other")
        case "text":
            entries[1] = Utterance("b", f"{tmp_path}/b.wav", "b")
        case "id":
            entries[1] = Utterance("d", f"{tmp_path}/b.wav")
        case "order":
            entries = entries[::-1]
        case "another":
            entries.append(Utterance("e", f"{tmp_path}/b.wav"))
    assert digest_of_recordings(entries) != before
