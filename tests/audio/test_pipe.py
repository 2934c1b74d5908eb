"""Audio from pipes: raw samples and WAV files in any pieces, and what is refused."""

import io
import struct

import numpy as np
import pytest
import soundfile

from asr_jax.audio.errors import AudioError
from asr_jax.audio.mono import Remarks
from asr_jax.audio.pipe import PipedAudio
from asr_jax.audio.streaming import StreamResampler
from asr_jax.audio.wav import UNKNOWN

SAMPLES = np.random.default_rng(0).integers(-20000, 20000, 5000).astype(np.int16)


def in_pieces(content, seed=0):
    """A function that returns pieces of random sizes."""
    rng, stream = np.random.default_rng(seed), io.BytesIO(content)
    return lambda num: stream.read(min(num, int(rng.choice([1, 2, 3, 7, 1000, 9999]))))


def piped(content, *, rate_hz=16000, seed=0):
    remarks = Remarks()
    audio = PipedAudio(in_pieces(content, seed), "pipe", rate_hz=rate_hz, remarks=remarks)
    blocks = list(audio)
    return audio.samples, np.concatenate(blocks) if blocks else np.zeros(0, np.int16), remarks


def wav(samples, rate_hz=16000, subtype="PCM_16", kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=subtype)
    return file.getvalue()


def test_raw_samples_in_odd_pieces():
    for seed in range(3):
        form, found, remarks = piped(SAMPLES.tobytes(), rate_hz=8000, seed=seed)
        np.testing.assert_array_equal(found, SAMPLES)
        assert (form.rate_hz, remarks.reasons, remarks.is_silent) == (8000, [], False)


def test_a_pipe_that_ends_within_a_sample():
    _, found, remarks = piped(SAMPLES.tobytes()[:-1])
    np.testing.assert_array_equal(found, SAMPLES[:-1])
    assert remarks.reasons == ["the pipe ends within a sample: its last 1 byte of a sample of 2 bytes cannot be used"]


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_wav_files_with_and_without_a_size(kind):
    content = wav(SAMPLES, 44100, kind=kind)
    place = content.index(b"data") + 4
    # The last sizes are of ffmpeg, sox and arecord.
    for size in (len(SAMPLES) * 2, 0, UNKNOWN, 0x7FFFF000, 0x7FFFFFFF - 44, 0x80000000):
        form, found, _ = piped(content[:place] + struct.pack("<I", size) + content[place + 4 :])
        assert (form.rate_hz, form.channels) == (44100, 1)
        assert form.size == (size if size == len(SAMPLES) * 2 else np.inf)
        np.testing.assert_array_equal(found, SAMPLES)
    # Chunks after the samples are not samples.
    _, found, _ = piped(content + b"LIST\x04\0\0\0abcd")
    np.testing.assert_array_equal(found, SAMPLES)


def test_channels_and_floats():
    both = np.stack([SAMPLES, SAMPLES // 2], axis=1)
    _, found, _ = piped(wav(both))
    assert np.abs(found - both.mean(axis=1)).max() <= 0.5
    _, found, _ = piped(wav(SAMPLES / 32768, subtype="FLOAT"))
    np.testing.assert_array_equal(found, SAMPLES)
    with pytest.raises(AudioError, match="pipe: its channels cancel out"):
        piped(wav(np.stack([SAMPLES, -SAMPLES], axis=1)))
    _, _, remarks = piped(np.zeros(900, np.int16).tobytes())
    assert remarks.is_silent


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty: expected raw 16-bit samples or a WAV file"),
        (wav(SAMPLES, kind="FLAC"), "FLAC, which is not read from a pipe while it arrives: expected raw 16-bit"),
        (wav(SAMPLES, subtype="PCM_24"), "samples of 24 bits with code 1: expected 16 bits"),
        (wav(SAMPLES)[:30], "the pipe ends within the header"),
        (wav(SAMPLES)[:12] + b"LIST\xfe\xff\xff\xff", "the pipe ends within the header"),
        (b"1", "it ends before the first sample is whole: expected raw 16-bit samples"),
        (wav(SAMPLES)[:44], "it ends before the first sample is whole"),
        (wav(SAMPLES)[:12] + wav(SAMPLES)[36:], "without the format of its samples"),
    ],
)
def test_what_is_refused(content, message):
    with pytest.raises(AudioError, match=message):
        piped(content)


def test_pieces_do_not_change_resampled_samples():
    whole = StreamResampler(44100, 16000)(SAMPLES, is_last=True)
    assert abs(len(whole) - len(SAMPLES) * 160 / 441) <= 1
    stream, found = StreamResampler(44100, 16000), []
    for first in range(0, len(SAMPLES), 333):
        found.append(stream(SAMPLES[first : first + 333]))
    found.append(stream(SAMPLES[:0], is_last=True))
    np.testing.assert_array_equal(np.concatenate(found), whole)
    assert StreamResampler(16000, 16000)(SAMPLES) is SAMPLES
