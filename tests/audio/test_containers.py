"""Properties of audio in any container, codec, sample format, rate and number of channels, against other decoders."""

import functools
import tempfile
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from recordings import noise, write_av

from asr_jax.audio import pyav
from asr_jax.audio.io import NamedAudio, probe, read_audio, stream_audio
from tests.support import assert_close

pytestmark = pytest.mark.slow
EXAMPLES = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
RATES_HZ = (8000, 11025, 16000, 22050, 32000, 44100, 48000)
# RAW has no header, SD2 has it in another file, and HTK and SDS store only a rounded period of the samples.
OF_SOUNDFILE = [
    (container, subtype)
    for container in soundfile.available_formats()
    for subtype in soundfile.available_subtypes(container)
    if container not in ("RAW", "SD2", "HTK", "SDS") and soundfile.check_format(container, subtype)
]
OF_FFMPEG = [
    ("webm", "libopus"), ("mka", "flac"), ("mkv", "aac"), ("mkv", "pcm_s24le"), ("mka", "pcm_f32le"), ("mka", "mp2"),
    ("mp4", "aac"), ("mp4", "flac"), ("mp4", "libopus"), ("m4a", "aac"), ("m4a", "alac"), ("mov", "pcm_s16be"),
    ("mov", "aac"), ("ts", "aac"), ("ts", "mp2"), ("aac", "aac"), ("wma", "wmav2"), ("wav", "libmp3lame"),
    ("wav", "mp2"),
]  # fmt: skip
NO_TIMES = ("aac", "wav", "wma", "mov pcm_s16be", "m4a alac")
"""Containers and codecs whose muxers do not write gaps."""


def as_mono(samples: np.ndarray) -> np.ndarray:
    """Mean of the channels as int16, computed in float32 as the reader does."""
    if samples.dtype == np.int16 and samples.shape[1] == 1:
        return samples[:, 0]
    floats = samples.astype(np.float32) / 32768 if samples.dtype == np.int16 else samples
    return np.clip(np.rint(floats.mean(axis=1, dtype=np.float32) * 32768), -32768, 32767).astype(np.int16)


def check_all_ways(path: Path, rate_hz: int, part: tuple[float, float], *, steps: int = 0) -> np.ndarray:
    """Checks that all ways to read a file agree, within some steps of 16 bits; returns its samples."""
    equal = functools.partial(assert_close, rtol=0.0, atol=steps)
    whole = read_audio(path, rate_hz=rate_hz)
    equal(np.concatenate(list(stream_audio(path, rate_hz=rate_hz))), whole)
    equal(read_audio(NamedAudio(path.read_bytes(), path.name), rate_hz=rate_hz), whole)
    info = probe(path)
    assert info.rate_hz == rate_hz
    packet_s = 4096 / rate_hz  # padding of codecs, which headers may not count
    assert len(whole) / rate_hz - packet_s - 0.01 <= info.duration_s <= len(whole) / rate_hz + 0.15
    first, end = (round(share * len(whole)) for share in sorted(part))
    end = max(end, first + 1)
    options = {"rate_hz": rate_hz, "start_s": first / rate_hz, "length_s": (end - first) / rate_hz}
    if first < len(whole):
        equal(read_audio(path, **options), whole[first:end])
        equal(np.concatenate(list(stream_audio(path, **options))), whole[first:end])
    return whole


shares = st.tuples(st.floats(0, 1), st.floats(0, 1))


@EXAMPLES
@given(
    kind=st.sampled_from(OF_SOUNDFILE),
    rate_hz=st.sampled_from(RATES_HZ),
    channels=st.integers(1, 3),
    num=st.integers(1, 60_000),
    part=shares,
)
def test_what_libsndfile_reads_are_its_samples(kind, rate_hz, channels, num, part):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.audio")
        samples = noise(num, num * channels).reshape(num, channels) / 40000
        try:
            soundfile.write(path, samples, rate_hz, format=kind[0], subtype=kind[1])
            dtype = "int16" if soundfile.info(path).subtype == "PCM_16" else "float32"
            expected, of_file_hz = soundfile.read(path, dtype=dtype, always_2d=True)
        except (soundfile.LibsndfileError, ValueError):
            assume(False)  # a combination that the container does not have, or that libsndfile cannot read again
        assume(len(expected) > 1)
        steps = 2 * (kind[0] == "MP3")  # the last bit of its floats depends on the number of samples read at once
        whole = check_all_ways(path, of_file_hz, part, steps=steps)
        assert_close(whole, as_mono(expected), rtol=0.0, atol=steps)


def decoded(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Samples of all frames, the time of each sample in seconds, and the sample rate in Hz."""
    with av.open(path) as container:
        stream = container.streams.audio[0]
        start_s = (container.start_time or 0) / 1e6
        zero_s = 0.0 if container.format.name in pyav.FROM_ZERO else start_s
        resampler, samples, times, next_s = av.AudioResampler(format="fltp"), [], [], 0.0
        for frame in container.decode(stream):
            start_s = next_s if frame.pts is None else float(frame.pts * frame.time_base) - zero_s
            times.append(start_s + np.arange(frame.samples) / frame.sample_rate)
            next_s = start_s + frame.samples / frame.sample_rate
            samples += [each.to_ndarray().T for each in resampler.resample(frame)]
        return np.concatenate(samples), np.concatenate(times), stream.rate


@EXAMPLES
@given(
    kind=st.sampled_from(OF_FFMPEG),
    rate_hz=st.sampled_from(RATES_HZ),
    channels=st.integers(1, 2),
    num=st.integers(5_000, 100_000),
    late_s=st.sampled_from([0.0, 0.0, 0.7, 2.0]),
    gap=shares,
    video_s=st.sampled_from([0.0, 0.0, 3.0]),
    part=shares,
)
def test_what_ffmpeg_reads_are_its_samples_at_their_times(kind, rate_hz, channels, num, late_s, gap, video_s, part):
    container, codec = kind
    has_times = not {container, " ".join(kind)} & {*NO_TIMES}
    begin_s, end_s = (share * num / rate_hz for share in sorted(gap))
    options = {"late_s": late_s, "gap_s": (begin_s, end_s)} if has_times else {}
    if container in ("webm", "mkv", "mp4", "mov", "ts"):
        options["video_s"] = video_s
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.{container}")
        try:
            write_av(path, noise(num, num * channels).reshape(num, channels), codec, rate_hz, **options)
            samples, times, of_file_hz = decoded(path)
        except (av.FFmpegError, ValueError):
            assume(False)  # a rate that the codec does not have, or no packets
        whole = check_all_ways(path, of_file_hz, part)
        expected = as_mono(samples)
        places = np.clip(np.rint(times * of_file_hz).astype(int), 0, None)
        assert abs(len(whole) - (places[-1] + 1)) <= (pyav.GAP_S + 0.01) * of_file_hz
        # Each frame is at its time, within the smallest gap, and between frames is silence.
        rest, place = np.ones(len(whole), bool), 0
        starts = [0, *np.flatnonzero(np.diff(times) > 1.5 / of_file_hz + 1e-9) + 1, len(expected)]
        for first, end in pairwise(starts):
            before = place
            while place + end - first <= len(whole) and not np.array_equal(
                whole[place : place + end - first], expected[first:end]
            ):
                place += 1
            assert place + end - first <= len(whole), (kind, before, first)
            assert abs(place - places[first]) <= (pyav.GAP_S + 0.01) * of_file_hz
            rest[place : place + end - first] = False
            place += end - first
        assert not whole[rest].any()
