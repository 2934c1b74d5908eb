"""WAV files that were written to a pipe have no size in their header and are read to the end."""

import struct

import numpy as np
import pytest

from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio, stream_audio

SAMPLES = np.arange(-800, 800, dtype="<i2")
LIST = b"LIST" + struct.pack("<I", 4) + b"INFO"


def wav(size: int, *, before: bytes = b"", content: bytes = SAMPLES.tobytes()) -> bytes:
    """Returns a WAV file with this number of bytes of samples in its header."""
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    return b"RIFF" + struct.pack("<I", size) + b"WAVE" + form + before + b"data" + struct.pack("<I", size) + content


@pytest.mark.parametrize("content", [wav(0), wav(0, before=LIST), wav(0xFFFFFFFF), wav(0x7FFFFFFF)])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_header_without_a_size(tmp_path, content, is_named):
    (tmp_path / "a.wav").write_bytes(content)

    def file():
        return NamedAudio(content, "a.wav") if is_named else tmp_path / "a.wav"

    assert probe(file()).duration_s == 0.1
    np.testing.assert_array_equal(read_audio(file()), SAMPLES)
    np.testing.assert_array_equal(read_audio(file(), start_s=0.05, length_s=0.01), SAMPLES[800:960])
    np.testing.assert_array_equal(np.concatenate(list(stream_audio(file(), rate_hz=16000))), SAMPLES)


@pytest.mark.parametrize("content", [b"", LIST])
def test_a_file_without_samples(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(wav(0, content=content))
    with pytest.raises(AudioError, match="no samples"):
        read_audio(tmp_path / "a.wav")
