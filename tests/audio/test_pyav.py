"""Audio read by PyAV: durations are never less than the samples; errors for truncated files and without PyAV."""

import sys
from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, noise, write_av

from asr_jax.audio import pyav
from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio


def tone(hz: float, rate_hz: int, duration_s: float) -> np.ndarray:
    return np.rint(16000 * np.sin(2 * np.pi * hz * np.arange(int(duration_s * rate_hz)) / rate_hz)).astype(np.int16)


AV_FORMATS = [("a.m4a", "aac"), ("a.aac", "aac"), ("a.webm", "libopus"), ("a.mp4", "aac"), ("a.mka", "flac")]


@pytest.mark.parametrize(("name", "codec"), AV_FORMATS)
@pytest.mark.parametrize("duration_s", [0.13, 1.237])
def test_formats_of_ffmpeg(tmp_path: Path, name: str, codec: str, duration_s: float) -> None:
    rate_hz = 48000
    path = write_av(tmp_path / name, tone(440, rate_hz, duration_s), codec, rate_hz)
    for make in (lambda: path, lambda: NamedAudio(path.read_bytes(), name)):
        read = read_audio(make())
        assert 1000 * duration_s - 1 <= 1000 * len(read) / RATE < 1000 * duration_s + 100
        assert len(read) / RATE - 1e-3 <= probe(make()).duration_s < len(read) / RATE + 0.01
        spectrum = np.abs(np.fft.rfft(read.astype(float), RATE))
        assert abs(int(spectrum.argmax()) - 440) <= 3


@pytest.mark.parametrize(("name", "codec"), AV_FORMATS)
def test_cut_files_of_ffmpeg_are_named(tmp_path: Path, name: str, codec: str) -> None:
    path = write_av(tmp_path / name, tone(440, 48000, 3.0), codec, 48000)
    content = path.read_bytes()
    for part, reason in (
        (content[: len(content) // 2], "truncated: it has 1.* of 3.* s of audio|check that the file is complete"),
        (b"", "0 bytes"),
        (b"no audio" * 99, "check that the file is complete"),
    ):
        path.write_bytes(part)
        with pytest.raises(AudioError, match=reason) as caught:
            read_audio(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "codec"), AV_FORMATS[:3])
def test_whatever_is_damaged_ends_in_audio_or_in_an_audio_error(tmp_path: Path, name: str, codec: str) -> None:
    content = write_av(tmp_path / name, noise(1, 24000), codec, 48000).read_bytes()
    rng, named = np.random.default_rng(0), 0
    for number in range(80):
        damaged = bytearray(content)
        near = len(content) if number % 2 else min(len(content), 900)  # damages the header in every other file
        for place in rng.integers(0, near, rng.integers(1, 30)):
            damaged[place] = rng.integers(0, 256)
        for function in (probe, read_audio):
            try:
                function(NamedAudio(bytes(damaged), name))
            except AudioError as error:
                named += bool(error.reason)
    assert named > 16


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_av(tmp_path / "a.m4a", noise(1, 48000), "aac", 48000)
    monkeypatch.setitem(sys.modules, "av", None)
    for function in (read_audio, probe):
        with pytest.raises(AudioError, match=r"\.m4a is not read by libsndfile; .*pip install 'asr-jax\[formats\]'"):
            function(path)
    assert set(pyav.SUFFIXES) >= {".m4a", ".aac", ".webm"}
