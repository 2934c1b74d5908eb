"""Levels: another scale is refused, clipped samples are a remark, silence is known, channels that cancel out."""

from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, noise, write

from asr_jax.audio.io import AudioError, Remarks, read_audio, stream_audio


def at_once(path: Path, **options) -> tuple[np.ndarray, Remarks]:
    remarks = Remarks()
    return read_audio(path, remarks=remarks, **options), remarks


def in_blocks(path: Path, **options) -> tuple[np.ndarray, Remarks]:
    remarks = Remarks()
    return np.concatenate(list(stream_audio(path, rate_hz=RATE, remarks=remarks, **options))), remarks


both = pytest.mark.parametrize("read", [at_once, in_blocks])


def floats(peak: float) -> np.ndarray:
    values = (noise(0) / 40000).astype(np.float32)
    values[100:103] = peak, -peak, peak
    return values


@both
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("peak", [1.02, 1.9])
def test_peaks_a_little_above_full_scale_are_clipped_with_a_remark(tmp_path, read, subtype, peak):
    samples, remarks = read(write(tmp_path / "a.wav", floats(peak), subtype=subtype))
    assert samples[100:103].tolist() == [32767, -32768, 32767]
    assert remarks.reasons == [f"above full scale: the peak is {peak:g}, full scale is 1; 3 samples are clipped"]
    assert not remarks.is_silent


@both
@pytest.mark.parametrize("scale", [2.1, 128, 32768, 2**31])
def test_another_scale_is_refused(tmp_path, read, scale):
    with pytest.raises(AudioError, match=r"out of range: the peak is .*, full scale is 1; divide the samples by 32768"):
        read(write(tmp_path / "a.wav", floats(1.0) * scale, subtype="FLOAT"))


def constant(value: int, channels: int = 1) -> np.ndarray:
    return np.full((RATE, channels), value, np.int16)


SILENT = {
    "zeros": constant(0),
    "DC offset": constant(12000),
    "dithered": constant(0) + np.random.default_rng(0).integers(-1, 2, (RATE, 1)).astype(np.int16),
    "two channels": np.concatenate([constant(100), constant(7)], axis=1),
}


@both
@pytest.mark.parametrize("rate_hz", [RATE, 44100])
@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
@pytest.mark.parametrize("kind", SILENT)
def test_silence_is_known(tmp_path, read, kind, name, rate_hz):
    assert read(write(tmp_path / name, SILENT[kind], rate_hz))[1] == Remarks([], is_silent=True)


@both
def test_quiet_noise_and_a_part_with_a_sound_are_not_silent(tmp_path, read):
    quiet = constant(0)
    quiet[2000] = 4
    path = write(tmp_path / "a.wav", quiet)
    assert not read(path)[1].is_silent
    assert read(path, start_s=0.5)[1].is_silent


@both
@pytest.mark.parametrize("second", [-1.0, -0.98])
def test_channels_that_cancel_out_are_named_and_each_can_be_read(tmp_path, read, second):
    values = noise(1)
    path = write(tmp_path / "a.wav", np.stack([values, np.rint(second * values).astype(np.int16)], axis=1))
    with pytest.raises(AudioError, match=r"its channels cancel out.*channel=0"):
        read(path)
    np.testing.assert_array_equal(read(path, channel=0)[0], values)


@both
@pytest.mark.parametrize(
    "channels", [[noise(1), noise(2)], [noise(1), noise(1) * 0], [noise(1), -noise(1) // 2], [noise(1)] * 4]
)
def test_other_channels_are_averaged(tmp_path, read, channels):
    samples, remarks = read(write(tmp_path / "a.wav", np.stack(channels, axis=1)))
    np.testing.assert_array_equal(samples, np.rint(np.mean(np.float64(channels), axis=0)))
    assert remarks == Remarks()
