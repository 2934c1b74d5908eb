"""Masks, rectangles and warps: masked values, distributions of widths, and reproducibility."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.presets import quartznet, wav2vec2
from asr_jax.audio.specaugment import Cutout, SpecAugment, TimeWarp, VocalTract
from asr_jax.core.meshes import by_rows, data_mesh, replicated
from tests.support import assert_close, assert_within

STEP = jnp.int32(0)
MASKS = SpecAugment(num_freq_masks=2, max_freq_bins=6, num_time_masks=3, max_time_frames=12)
VOICES = VocalTract(max_warp=0.18)


def random_values(num_rows, num_frames=100, num_bins=20):
    return np.random.default_rng(1).normal(size=(num_rows, num_frames, num_bins)).astype(np.float32)


@partial(jax.jit, static_argnums=0)
def change(settings, values, lengths, key):
    return settings(values, lengths, key, step=STEP, front_end=KaldiFbank(), sounds={})


@partial(jax.jit, static_argnums=0)
def draw(settings, values, lengths, key):
    return settings.drawn(values, lengths, key, step=STEP)


@partial(jax.jit, static_argnums=0)
def apply(settings, values, lengths, found):
    return settings.changed(values, lengths, found, front_end=KaldiFbank(), sounds={})


def changed(settings, values, lengths, key=0):
    return np.asarray(change(settings, values, np.asarray(lengths), jax.random.key(key)))


def drawn(settings, values, lengths):
    return jax.device_get(draw(settings, values, np.asarray(lengths), jax.random.key(0)))


def test_specaugment_masks_whole_bins_and_frames_with_the_mean_in_as_many_rows_as_asked_for():
    lengths, values = [100, 60, 20] + [100] * 1997, random_values(2000)
    masked = changed(MASKS, values, lengths)
    assert 0.85 < (masked != values).any(axis=(1, 2)).mean() < 0.93
    assert (masked[:3] != values[:3]).any(axis=(1, 2)).all()
    for before, after, length in zip(values[:3], masked, lengths, strict=False):
        differs = before != after
        assert not differs[length:].any()
        assert_close(after[differs], before[:length].mean(), atol=1e-6)
        valid = differs[:length]
        whole_frames, whole_bins = valid.all(axis=1), valid.all(axis=0)
        assert (valid == (whole_frames[:, None] | whole_bins)).all()
        assert whole_frames.sum() <= 0.15 * length
        assert whole_bins.sum() <= 10
    np.testing.assert_array_equal(masked, changed(MASKS, values, lengths))
    assert not (masked == changed(MASKS, values, lengths, 1)).all()


@pytest.mark.parametrize(
    ("system", "least", "widest", "last_end"),
    [("icefall", 0, 9, 99), ("nemo", 0, 9, 99), ("quartznet", 0, 10, 129), ("rnnt", 0, 10, 130), ("rust", 1, 10, 100)],
)  # fmt: skip
def test_specaugment_widths_are_uniform_within_the_utterance_or_the_padded_row(system, least, widest, last_end):
    settings = SpecAugment(
        probability=1.0, num_freq_masks=0, num_time_masks=1, max_time_frames=10, max_time_share=1.0, system=system,
    )  # fmt: skip
    found = drawn(settings, random_values(6000, 130, 1), [100] * 6000)
    counts = np.bincount(found["time_widths"][:, 0], minlength=widest + 1)
    assert len(counts) == widest + 1
    assert not counts[:least].any()
    expected = counts.sum() / (widest - least + 1)
    assert np.abs(counts[least:] - expected).max() < 4 * np.sqrt(expected)
    assert (found["time_starts"] + found["time_widths"]).max() == last_end


def test_a_row_is_changed_alike_in_any_batch():
    values, lengths = random_values(2000), [100] * 2000
    few, whole = changed(MASKS, values[:8], lengths[:8]), changed(MASKS, values, lengths)
    np.testing.assert_array_equal(few, whole[:8])


def test_no_room_for_masks_changes_nothing():
    values = random_values(3)
    np.testing.assert_array_equal(changed(replace(MASKS, probability=1.0, num_freq_masks=0), values, [3, 1, 0]), values)


def test_cutout_zeroes_rectangles():
    values = np.ones((300, 50, 40), np.float32)
    settings = Cutout(num=1, freq_bins=(3, 5), time_frames=(2, 9))
    masked = changed(settings, values, [30] * 300)
    for row in masked == 0:
        frames, bins = np.flatnonzero(row.any(axis=1)), np.flatnonzero(row.any(axis=0))
        assert row[np.ix_(frames, bins)].all()
        assert np.ptp(frames) + 1 == len(frames) in range(2, 10)
        assert np.ptp(bins) + 1 == len(bins) in range(3, 6)


def test_time_warp_moves_a_frame_and_keeps_both_ends_and_rows_without_room():
    ramp = np.broadcast_to(np.arange(120, dtype=np.float32)[None, :, None], (404, 120, 1))
    settings = TimeWarp(probability=1.0, max_frames=20)
    lengths = [100] * 400 + [40, 3, 1, 0]
    found = drawn(settings, ramp, lengths)
    warped = np.asarray(apply(settings, ramp, np.asarray(lengths), found))[..., 0]
    np.testing.assert_array_equal(warped[400:], ramp[400:, :, 0])
    warped, centre, move = warped[:400], found["centre"][:400], found["move"][:400]
    assert (np.diff(warped[:, :100]) > 0).all()
    np.testing.assert_array_equal(warped[:, 100:], ramp[:400, 100:, 0])
    assert_close(warped[:, [0, 99]], np.tile([0, 99], (400, 1)), atol=1e-4)
    assert_close(warped[np.arange(400), centre + move], centre, atol=1e-3)
    assert move.min() == -19
    assert move.max() == 19


def test_vocal_tract_moves_a_peak_by_the_factor():
    num_bins, peak = 80, 40
    values = np.zeros((500, 2, num_bins), np.float32)
    values[:, 0, peak] = 1.0
    warped = changed(VOICES, values, [1] * 500)[:, 0]
    mel = lambda hz: 1127 * np.log1p(hz / 700)  # noqa: E731
    spacing = (mel(7600) - mel(20)) / (num_bins + 1)
    centres = 700 * np.expm1((mel(20) + spacing * np.arange(1, num_bins + 1)) / 1127)
    factors = centres[peak] / centres[warped.argmax(axis=1)]
    assert 0.8 < factors.min() < 0.86 < 1.14 < factors.max() < 1.22
    same = changed(replace(VOICES, probability=0.0), values, [1] * 500)
    assert_close(same, values, atol=1e-5)


def test_what_is_made_for_another_mel_bank_is_refused():
    with pytest.raises(ValueError, match="the front-end's bins are on Slaney's"):
        VocalTract().check(quartznet())
    for augmentation in (SpecAugment(), Cutout(), TimeWarp(), VocalTract()):
        with pytest.raises(ValueError, match="Waveform returns samples: remove the augmentation from augment"):
            augmentation.check(wav2vec2())


def test_the_presets_of_systems_without_statistics():
    """Widths and positions for Myrtle's RNN-T (from its source) and the Rust trainer."""
    lengths, values = [200] * 3000, np.zeros((3000, 300, 80), np.float32)
    rnnt = drawn(SpecAugment.rnnt(), values, lengths)
    assert rnnt["time_widths"].shape == (3000, 10)
    assert rnnt["freq_widths"].shape == (3000, 2)
    assert int(rnnt["time_widths"].max()) == 6  # 3 % of 200
    assert_within(abs(float(rnnt["time_widths"].mean()) - 3), 0.05)
    assert int(rnnt["freq_widths"].max()) == 20
    assert int((rnnt["time_starts"] + rnnt["time_widths"]).max()) == 300  # of the padded row
    assert bool(rnnt["applied"].all())
    rust = SpecAugment.rust(num_time_masks=2, max_time_frames=8, num_freq_masks=1, max_freq_bins=5)
    found = drawn(rust, values, lengths)
    assert (int(found["time_widths"].min()), int(found["time_widths"].max())) == (1, 8)
    assert (int(found["freq_widths"].min()), int(found["freq_widths"].max())) == (1, 5)
    assert int((found["time_starts"] + found["time_widths"]).max()) == 200


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (SpecAugment, {"probability": 1.5}), (SpecAugment, {"num_time_masks": -1}),
        (SpecAugment, {"max_time_share": 2}),
        (Cutout, {"freq_bins": (21, 20)}), (TimeWarp, {"max_frames": 0}), (VocalTract, {"max_warp": 1.0}),
    ],
)  # fmt: skip
def test_impossible_values_are_named(cls, wrong):
    with pytest.raises(ValueError, match=re.escape(str(next(iter(wrong.values()))))):
        cls(**wrong)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (MASKS, (8, 100, 20)),
        pytest.param(VOICES, (500, 2, 80), marks=pytest.mark.slow),
        pytest.param(Cutout(), (8, 200, 80), marks=pytest.mark.slow),
        pytest.param(TimeWarp(max_frames=20), (8, 200, 80), marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_on_one_and_on_four_devices(settings, shape):
    values = np.round(8 * random_values(*shape))  # whole numbers, whose sums are exact
    lengths, key, mesh = np.linspace(1, shape[1], shape[0]).astype(int), jax.random.key(3), data_mesh(4)
    spread = *jax.device_put((values, lengths), by_rows(mesh)), jax.device_put(key, replicated(mesh))
    found = [np.asarray(change(settings, *given)) for given in ((values, lengths, key), spread)]
    if isinstance(settings, VocalTract):  # a matrix product rounds differently with another batch size
        assert_close(*found, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(*found)
