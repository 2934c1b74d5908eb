"""Folders of audio: every ending, every kind of text beside it, links, and names that are not UTF-8."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from recordings import RATE, check_conversion, check_signals, noise, read, signal, write, write_av
from support import SHARED

from asr_jax.audio.io import probe
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers.base import ReadOptions

AN4 = SHARED / "data" / "read_speech" / "formats" / "an4"


def test_formats_of_soundfile(tmp_path: Path) -> None:
    """Samples equal those that soundfile reads."""
    for name in ("a.wav", "b.flac", "c.WAV"):
        write(tmp_path / "set" / name, noise(1))
    write(tmp_path / "set" / "inner" / "d.mp3", noise(1, 40000), bitrate_mode="CONSTANT")
    write(tmp_path / "set" / "inner" / "e.ogg", noise(1, 40000))
    write(tmp_path / "set" / "inner" / "f.opus", noise(1, 40000), format="OGG", subtype="OPUS")
    for path in ReadOptions().walk(str(tmp_path / "set")):
        Path(path).with_suffix(".txt").write_text(f" text  of {Path(path).stem}\n")
    utterances = read(tmp_path, tmp_path / "set")
    names = ["a.wav", "b.flac", "c.WAV", "inner/d.mp3", "inner/e.ogg", "inner/f.opus"]
    assert [utterance.id for utterance in utterances] == names
    assert [utterance.text for utterance in utterances] == [f"text of {letter}" for letter in "abcdef"]
    for utterance in utterances:
        samples, rate_hz = soundfile.read(utterance.location, dtype="float32")
        assert utterance.duration_s == len(samples) / rate_hz
        expected = np.clip(np.rint(samples * 32768), -32768, 32767)
        # The output of mpg123 differs in the last bit of a float, depending on its place in memory.
        assert np.abs(signal(utterance) - expected).max() <= (1 if utterance.id.endswith("mp3") else 0), utterance.id
    check_conversion(tmp_path, tmp_path / "set")


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz"),
    [("a.m4a", "aac", 44100), ("b.aac", "aac", 44100), ("c.aac", "aac", 16000), ("d.webm", "libopus", 48000)],
)
def test_formats_of_pyav(tmp_path: Path, name: str, codec: str, rate_hz: int) -> None:
    """The header's duration is that of the samples, or longer by less than 10 ms."""
    samples = (8000 * np.sin(np.arange(3 * rate_hz) * 2 * np.pi * 440 / rate_hz)).astype(np.int16)
    samples[: len(samples) // 2] //= 50  # changes the bit rate
    path = write_av(tmp_path / "set" / name, samples, codec, rate_hz)
    path.with_suffix(".txt").write_text("a")
    (utterance,) = read(tmp_path, tmp_path / "set")
    audio = signal(utterance)
    assert abs(len(audio) - 3 * RATE) < 0.11 * RATE
    assert 0 <= utterance.duration_s - len(audio) / RATE + 1 / RATE < 0.01
    assert (probe(path).rate_hz, probe(path).channels) == (rate_hz, 1)
    spectrum = np.abs(np.fft.rfft(audio[-RATE:].astype(float)))
    assert int(spectrum.argmax()) == 440
    check_conversion(tmp_path, tmp_path / "set")


@pytest.mark.parametrize("ending", [".txt", ".lab", ".transcript", ".TXT"])
def test_texts_beside_audio(tmp_path: Path, ending: str) -> None:
    write(tmp_path / "a.b.wav", noise(1))
    (tmp_path / f"a.b{ending}").write_bytes(b"\xef\xbb\xbf" + "größer\r\n".encode())
    (tmp_path / "a.b.rows").write_text("17")
    (utterance,) = read(tmp_path, tmp_path)
    assert (utterance.text, utterance.labels, utterance.duration_s) == ("größer", None, 3000 / RATE)


@pytest.mark.parametrize("ending", [".tokens", ".tok"])
@pytest.mark.parametrize("content", ["5 0 12", "5,0,12\n"])
def test_token_ids_beside_audio(tmp_path: Path, ending: str, content: str) -> None:
    write(tmp_path / "a.wav", noise(1))
    (tmp_path / f"a{ending}").write_text(content)
    (utterance,) = read(tmp_path, tmp_path)
    assert (utterance.text, utterance.labels) == ("", (5, 0, 12))
    (tmp_path / "a.lab").write_text("with text")
    (utterance,) = read(tmp_path, tmp_path)
    assert (utterance.text, utterance.labels) == ("with text", (5, 0, 12))


def test_single_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", noise(1))
    (tmp_path / "a.LAB").write_text("one")
    utterances = read(tmp_path, path)
    assert [(utterance.id, utterance.text, utterance.location) for utterance in utterances] == [
        ("a.wav", "one", str(path))
    ]


def many(folder: Path, num: int = 20) -> list[np.ndarray]:
    for i in range(num):
        write(folder / f"{i:02}.wav", noise(i, 200))
        (folder / f"{i:02}.txt").write_text("a")
    return [noise(i, 200) for i in range(num)]


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    samples = many(tmp_path / "set")
    write(tmp_path / "set" / "lonely.wav", noise(1))
    write(tmp_path / "set" / "latin.wav", noise(1)).with_suffix(".txt").write_bytes(b"\xe9")
    utterances = read(tmp_path, tmp_path / "set")
    check_signals(utterances, samples)
    lonely, latin = sorted(utterances.rejected, key=lambda entry: entry.id, reverse=True)
    assert (lonely.id, lonely.location) == ("lonely.wav", str(tmp_path / "set" / "lonely.wav"))
    assert (
        lonely.reason
        == "no text beside the audio: expected lonely.txt (or, with the same name, .lab, .transcript, .tokens)"
    )
    assert (
        "latin.txt: not UTF-8 (byte 0xe9 at 0); save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT"
        in latin.reason
    )


def test_names_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    samples = many(tmp_path / "set")
    bad = os.fsencode(tmp_path / "set") + b"/caf\xe9.wav"
    shutil.copy(tmp_path / "set" / "00.wav", bad)
    shutil.copy(tmp_path / "set" / "00.txt", bad.replace(b".wav", b".txt"))
    utterances = read(tmp_path, tmp_path / "set")
    check_signals(utterances, samples)
    (rejected,) = utterances.rejected
    assert (rejected.id, rejected.reason) == (
        "caf\\udce9.wav",
        "its name is not UTF-8, or has a zero byte; rename the file",
    )


def test_links_to_folders_are_followed_and_loops_end(tmp_path: Path) -> None:
    samples = many(tmp_path / "else" / "inner", 3)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path / "else")
    (folder / "linked" / "up").symlink_to(folder)
    (folder / "linked" / "inner" / "self").symlink_to(folder / "linked" / "inner")
    (folder / "circle.wav").symlink_to(folder / "circle.wav")
    (folder / ".hidden.wav").write_bytes(b"")
    assert [os.path.relpath(path, folder) for path in ReadOptions().walk(str(folder)) if path.endswith(".wav")] == [
        "circle.wav", *(f"linked/inner/{i:02}.wav" for i in range(3)),
    ]  # fmt: skip
    (folder / "circle.wav").unlink()
    utterances = read(tmp_path, folder)
    assert [utterance.id for utterance in utterances] == [f"linked/inner/{i:02}.wav" for i in range(3)]
    check_signals(utterances, samples)


def test_a_folder_without_audio_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(UserError, match="nothing to read"):
        read(tmp_path, tmp_path)


@pytest.mark.skipif(not AN4.exists(), reason=f"no {AN4}: set ASR_JAX_SHARED to its folder")
def test_real_sphere_files(tmp_path: Path) -> None:
    folder = tmp_path / "an4"
    shutil.copytree(AN4 / "wav", folder)
    texts = {}
    for path in folder.rglob("*.sph"):
        path.with_suffix(".txt").write_text(f"text of {path.stem}")
        texts[str(path.relative_to(folder))] = f"text of {path.stem}"
    utterances = read(tmp_path, folder)
    assert {utterance.id: utterance.text for utterance in utterances} == texts
    assert len(utterances) == 8
    for utterance in utterances:
        samples, rate_hz = soundfile.read(utterance.location, dtype="int16")
        assert (rate_hz, utterance.duration_s) == (RATE, len(samples) / RATE)
        np.testing.assert_array_equal(signal(utterance), samples)
    check_conversion(tmp_path, folder)


def test_pipes_as_audio_and_as_texts_are_rejected_by_name(tmp_path: Path) -> None:
    for name in ("good", "piped"):
        write(tmp_path / "set" / f"{name}.wav", noise(1))
    (tmp_path / "set" / "good.txt").write_text("ab")
    os.mkfifo(tmp_path / "set" / "piped.txt")
    os.mkfifo(tmp_path / "set" / "sound.wav")
    (tmp_path / "set" / "sound.txt").write_text("ab")
    utterances = read(tmp_path, tmp_path / "set")
    assert [each.id for each in utterances] == ["good.wav"]
    reasons = {each.id: each.reason for each in (*utterances.rejected, *utterances.rejected)}
    assert all("a pipe or a device, not a file" in reasons[name] for name in ("piped.wav", "sound.wav"))
