"""Audio read by PyAV: durations are never less than the samples; errors for truncated files and without PyAV."""

import sys
from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, noise, write_av

from asr_jax.audio import pyav
from asr_jax.audio.io import AudioError, NamedAudio, Remarks, probe, read_audio, stream_audio
from tests.support import approx


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
        (content[: len(content) // 2], "truncated: it has .* of .* (s of audio|bytes)|check that the file is complete"),
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


FRAME = 1152
"""Largest frame of the codecs in samples."""
CONTAINERS = [
    ("a.webm", "libopus", 48000), ("a.mkv", "flac", 44100), ("a.mp4", "aac", 44100), ("a.mp4", "flac", 48000),
    ("a.mov", "aac", 44100), ("a.ts", "mp2", 44100), ("a.ts", "aac", 48000),
]  # fmt: skip


@pytest.mark.parametrize(("name", "codec", "rate_hz"), CONTAINERS)
@pytest.mark.parametrize(
    ("options", "sounds_s"),
    [
        ({"gap_s": (1.0, 2.5)}, [(0.0, 1.0), (2.5, 3.0)]),
        ({"late_s": 2.0, "video_s": 6.0}, [(2.0, 5.0)]),
        ({"late_s": 2.0}, [(2.0, 5.0)]),
        ({"late_s": 1.0, "gap_s": (1.0, 2.0), "video_s": 1.0}, [(1.0, 2.0), (3.0, 4.0)]),
    ],
    ids=["gap", "late track", "late alone", "late with gap"],
)
def test_samples_are_at_the_times_of_the_medium(
    tmp_path: Path, name: str, codec: str, rate_hz: int, options: dict, sounds_s: list[tuple[float, float]]
) -> None:
    path = write_av(tmp_path / name, noise(0, 3 * rate_hz), codec, rate_hz, **options)
    if name == "a.ts" and options == {"late_s": 2.0}:
        sounds_s = [(0.0, 3.0)]  # the first packet is the beginning
    whole = read_audio(path)
    blocks = np.abs(whole[: len(whole) // 800 * 800].astype(float)).reshape(-1, 800).mean(axis=1)  # 50 ms
    for place, level in enumerate(blocks):
        begin_s, end_s = place * 0.05, place * 0.05 + 0.05
        if any(begin + 0.1 < begin_s and end_s < end - 0.1 for begin, end in sounds_s):
            assert level > 1000, begin_s
        elif not any(begin - 0.1 < end_s and begin_s < end + 0.1 for begin, end in sounds_s):
            assert level < 10, begin_s
    beyond_s = len(whole) / RATE - sounds_s[-1][1]  # codecs fill their frames
    assert -FRAME < beyond_s * rate_hz < 3 * FRAME
    assert -FRAME < (probe(path).duration_s - len(whole) / RATE) * rate_hz < FRAME
    np.testing.assert_array_equal(np.concatenate(list(stream_audio(path, rate_hz=RATE))), whole)


def test_a_fragmented_mp4_has_its_gaps(tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    path = write_av(tmp_path / "a.mp4", noise(0, 3 * RATE), "aac", RATE, gap_s=(1.0, 2.5), **options)
    assert 3 * RATE <= len(read_audio(path)) < 3 * (RATE + FRAME)


@pytest.mark.parametrize(("name", "codec", "rate_hz"), [("a.ts", "aac", RATE), ("a.webm", "libopus", 48000)])
def test_nothing_of_joined_files_is_lost_although_their_times_begin_again(
    tmp_path: Path, name: str, codec: str, rate_hz: int
) -> None:
    path = write_av(tmp_path / name, noise(0, 12 * rate_hz), codec, rate_hz)
    path.write_bytes(2 * path.read_bytes())
    assert 0 <= (probe(path).duration_s - 24) * rate_hz < 4 * FRAME
    assert 0 <= len(read_audio(path)) - 24 * RATE < 4 * FRAME


def test_a_live_recording_that_is_joined_later_begins_with_its_first_packet(tmp_path: Path) -> None:
    path = write_av(tmp_path / "a.webm", noise(0, 48000), "libopus", 48000, late_s=5000.0, live="1")
    assert len(read_audio(path)) == RATE
    assert probe(path).duration_s == approx(1.0, abs=0.01)


def test_times_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    path = write_av(tmp_path / "a.webm", noise(0, 48000), "libopus", 48000, live="1")
    second = write_av(tmp_path / "b.webm", noise(0, 48000), "libopus", 48000, live="1", late_s=9000.0)
    cluster = b"\x1f\x43\xb6\x75"
    content = second.read_bytes()
    path.write_bytes(path.read_bytes() + content[content.index(cluster) :])
    with pytest.raises(AudioError, match=r"no audio for 8999 s, expected at most 3600 s; .*aresample=async=1"):
        read_audio(path)


@pytest.mark.parametrize(("name", "codec", "ending"), [
    ("a.webm", "libopus", ".wav"), ("a.mp4", "aac", ".mp3"), ("a.mka", "flac", ".audio"), ("a.aac", "aac", ""),
    ("a.ts", "mp2", ".mpg"), ("a.mov", "aac", ".flac"), ("a.wma", "wmav2", ".wav"), ("a.wav", "mp2", ".wav"),
])  # fmt: skip
def test_a_file_is_known_by_its_content(tmp_path: Path, name: str, codec: str, ending: str) -> None:
    path = write_av(tmp_path / name, noise(0, 48000), codec, 48000)
    other = path.rename(tmp_path / f"other{ending}")
    for file in (other, NamedAudio(other.read_bytes(), f"other{ending}")):
        assert len(read_audio(file)) == approx(RATE, abs=2000)
        assert probe(file).duration_s == approx(1.0, abs=0.1)


def test_floating_point_samples_are_checked_as_in_wav(tmp_path: Path) -> None:
    samples = noise(0, RATE)
    for scale, reason in ((3, ""), (30, "out of range: the peak is"), (np.nan, "are NaN or infinite")):
        path, remarks = write_av(tmp_path / "a.mka", samples * float(scale), "pcm_f32le", RATE), Remarks()
        if reason:
            with pytest.raises(AudioError, match=reason):
                read_audio(path)
        else:
            assert read_audio(path, remarks=remarks).max() == 32767
            assert "above full scale: the peak is 1.831" in remarks.reasons[0]
    np.testing.assert_array_equal(read_audio(write_av(tmp_path / "b.mka", samples, "pcm_f32le", RATE)), samples)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_av(tmp_path / "a.m4a", noise(1, 48000), "aac", 48000)
    monkeypatch.setitem(sys.modules, "av", None)
    for function in (read_audio, probe):
        with pytest.raises(AudioError, match=r"libsndfile does not read its format, or .*ASR_JAX_EXTRAS=formats "):
            function(path)
    assert set(pyav.SUFFIXES) >= {".m4a", ".aac", ".webm"}
