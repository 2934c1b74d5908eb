"""Audio in blocks: the samples and the errors of `read_audio` in every format."""

import tracemalloc
from itertools import chain

import numpy as np
import pytest
import soundfile
from recordings import RATE, noise, write, write_av

from asr_jax.audio.io import AudioError, NamedAudio, read_audio, stream_audio

LENGTH = RATE * 18 + 123


def streamed(file, **options):
    blocks = list(stream_audio(file, rate_hz=RATE, **options))
    assert max(map(len, blocks)) <= 11 * RATE
    return np.concatenate(blocks)


def tone(num=LENGTH):
    return (8000 * np.sin(np.arange(num) ** 1.3 / 300)).astype(np.int16)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.ogg", "a.opus", "a.m4a", "a.webm"])
@pytest.mark.parametrize("rate_hz", [16000, 48000])
def test_all_of_a_file_and_a_part_of_it_as_when_read_at_once(tmp_path, name, rate_hz):
    path = tmp_path / name
    if name.endswith(("m4a", "webm")):
        write_av(path, tone(), {"m4a": "aac", "webm": "libopus"}[name[2:]], 48000)
    elif name.endswith("opus"):
        write(path, tone(), rate_hz, format="OGG", subtype="OPUS")
    else:
        write(path, tone(), rate_hz)
    whole = streamed(path)
    np.testing.assert_array_equal(whole, read_audio(path))
    part = {"start_s": 2.5, "length_s": 3.25}
    at_once = read_audio(path, **part)
    found = streamed(path, **part)
    assert len(found) == len(at_once)
    # Resampling only the part differs at its edges; streams that are decoded from their beginning have no such edges.
    assert np.abs(found.astype(int)[800:-800] - at_once.astype(int)[800:-800]).max() <= 1


def test_channels_and_bytes(tmp_path):
    both = np.stack([tone(), tone()[::-1]], axis=1)
    path = write(tmp_path / "two.flac", both)
    for channel in (None, 0, 1):
        np.testing.assert_array_equal(streamed(path, channel=channel), read_audio(path, channel=channel))
    content = NamedAudio(path.read_bytes(), "two.flac")
    np.testing.assert_array_equal(streamed(content, channel=1), both[:, 1])
    with pytest.raises(AudioError, match="no channel 2: the file has 2"):
        streamed(path, channel=2)


def test_what_is_cut_or_empty_or_ends_early_is_named(tmp_path):
    path = write(tmp_path / "a.wav", noise(0, LENGTH))
    cut = tmp_path / "cut.wav"
    cut.write_bytes(path.read_bytes()[: LENGTH * 2 - 4000])
    with pytest.raises(AudioError, match="truncated"):
        streamed(cut)
    with pytest.raises(AudioError, match="no samples"):
        streamed(write(tmp_path / "none.wav", noise(0, 0)))
    with pytest.raises(AudioError, match="the file ends before the requested part"):
        streamed(path, start_s=15.0, length_s=30.0)
    with pytest.raises(AudioError, match="no such file"):
        streamed(tmp_path / "gone.flac")
    bad = noise(0, LENGTH).astype(np.float32) / 32768
    bad[-5] = np.nan
    soundfile.write(tmp_path / "nan.wav", bad, RATE, subtype="FLOAT")
    with pytest.raises(AudioError, match="not finite: 1 samples"):
        streamed(tmp_path / "nan.wav")


def test_memory_does_not_grow_with_the_length(tmp_path):
    def peak(minutes):
        path = write(tmp_path / f"{minutes}.flac", np.tile(tone(RATE * 60), minutes))
        tracemalloc.start()
        num = sum(map(len, chain(stream_audio(path, rate_hz=8000))))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num == minutes * 60 * 8000
        return most

    assert peak(5) < 1.1 * peak(2)
