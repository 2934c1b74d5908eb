import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.augment import SpecAugment, VocalTract
from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Frames


def random_frames(lengths, num_frames=200, num_bins=80):
    values = np.random.default_rng(1).normal(size=(len(lengths), num_frames, num_bins)).astype(np.float32)
    return Frames(jnp.asarray(values), jnp.asarray(lengths))


def test_specaugment_masks_whole_bins_and_frames_with_the_mean():
    frames = random_frames([200, 120, 40])
    settings = SpecAugment(probability=1.0, num_freq_masks=1, max_freq_bins=10, num_time_masks=2, max_time_frames=12)
    masked = jax.jit(settings)(frames, jax.random.key(3))
    for row, length in enumerate([200, 120, 40]):
        before, after = np.asarray(frames.values[row]), np.asarray(masked.values[row])
        changed = before != after
        assert not changed[length:].any()
        np.testing.assert_allclose(after[changed], before[:length].mean(), atol=1e-6)
        valid = changed[:length]
        whole_frames, whole_bins = valid.all(axis=1), valid.all(axis=0)
        assert (valid == (whole_frames[:, None] | whole_bins)).all()
        assert whole_frames.sum() <= 0.15 * length
        assert whole_bins.sum() <= 10


def test_specaugment_widths_are_uniform():
    frames = random_frames([100] * 4000, num_frames=100, num_bins=4)
    settings = SpecAugment(probability=1.0, num_freq_masks=0, num_time_masks=1, max_time_frames=10, max_time_share=1.0)
    masked = settings(frames, jax.random.key(0))
    widths = np.asarray((masked.values != frames.values)[:, :, 0].sum(axis=1))
    counts = np.bincount(widths, minlength=11)
    assert len(counts) == 11
    expected = len(widths) / 11
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected)


def test_specaugment_probability_and_keys():
    frames = random_frames([100] * 2000, num_frames=100, num_bins=8)
    settings = SpecAugment(probability=0.9, max_freq_bins=8, num_freq_masks=4)
    first, again = settings(frames, jax.random.key(0)), settings(frames, jax.random.key(0))
    assert (first.values == again.values).all()
    assert not (first.values == settings(frames, jax.random.key(1)).values).all()
    touched = np.asarray((first.values != frames.values).any(axis=(1, 2))).mean()
    assert 0.85 < touched < 0.93


def test_no_room_for_masks_changes_nothing():
    frames = random_frames([3, 1, 0])
    masked = SpecAugment(probability=1.0, num_freq_masks=0)(frames, jax.random.key(0))
    np.testing.assert_array_equal(masked.values, frames.values)


def test_vocal_tract_moves_a_peak_by_the_factor():
    num_bins, peak = 80, 40
    values = np.zeros((500, 1, num_bins), np.float32)
    values[:, 0, peak] = 1.0
    frames = Frames(jnp.asarray(values), jnp.ones(500, jnp.int32))
    warped = np.asarray(VocalTract(max_warp=0.18)(frames, jax.random.key(0)).values)[:, 0]
    mel = lambda hz: 1127 * np.log1p(hz / 700)  # noqa: E731
    spacing = (mel(7600) - mel(20)) / (num_bins + 1)
    centres = 700 * np.expm1((mel(20) + spacing * np.arange(1, num_bins + 1)) / 1127)
    factors = centres[peak] / centres[warped.argmax(axis=1)]
    assert 0.8 < factors.min() < 0.86 < 1.14 < factors.max() < 1.22
    same = VocalTract(max_warp=0.18, probability=0.0)(frames, jax.random.key(0))
    np.testing.assert_allclose(same.values, values, atol=1e-5)


def test_what_is_made_for_another_mel_bank_is_refused():
    with pytest.raises(ValueError, match="set both alike"):
        VocalTract(high_hz=7000.0).check(KaldiFbank())
