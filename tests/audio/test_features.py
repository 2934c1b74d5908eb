import jax
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from tests.support import assert_close, assert_within


@pytest.mark.parametrize(
    "settings",
    [
        {"snip_edges": True}, {"rate_hz": 22050},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"hop_ms": 20.0}, {"rate_hz": 48000})),
    ],
    ids=str,
)  # fmt: skip
def test_padding_and_batching_never_change_a_frame(settings):
    front_end = KaldiFbank(**settings)
    rng = np.random.default_rng(0)
    shortest = 400 if front_end.snip_edges else 90  # fewer samples than are mirrored in front
    lengths = np.array([3999, 4000, 1601, max(shortest, front_end.hop)], np.int32)
    audio = rng.integers(-9000, 9000, (4, 5000)).astype(np.int16)
    jitted = jax.jit(front_end)
    noisy = jax.device_get(jitted(audio, lengths))  # noise, not zeros, behind each row's end
    quiet = jax.device_get(jitted(np.where(np.arange(5000) < lengths[:, None], audio, np.int16(0)), lengths))
    less = jax.device_get(jitted(audio[:, :4000], lengths))  # the second row without padding
    alone = jax.device_get(jitted(audio[3:, : lengths[3]], lengths[3:]))
    for row, num_frames in enumerate(noisy.lengths):
        energy = np.exp(noisy.values[row, :num_frames])
        for others, place in ((less, row), *([(alone, 0)] if row == 3 else [])):
            assert num_frames == others.lengths[place]
            expected = np.exp(others.values[place, :num_frames])
            # Two compilations round differently, relative to a frame's strongest bin.
            assert_within(np.max(np.abs(energy - expected) / expected.max(axis=1, keepdims=True)), 1e-5)
        np.testing.assert_array_equal(noisy.values[row, :num_frames], quiet.values[row, :num_frames])
    assert alone.values.shape[1] == noisy.lengths[3]
    silence = np.log(2.0**-23)
    assert_close(noisy.values[3, int(noisy.lengths[3]) :], silence)


@pytest.mark.parametrize("snip_edges", [False, True])
def test_output_length_is_true_for_ints_and_arrays(snip_edges):
    front_end = KaldiFbank(snip_edges=snip_edges)
    numbers = np.array([0, 79, 80, 399, 400, 401, 559, 560, 1600], np.int32)
    together = jax.jit(lambda *batch: front_end(*batch).lengths)(np.zeros((len(numbers), 1600), np.float32), numbers)
    lengths = [front_end.output_length(int(number)) for number in numbers]
    assert together.tolist() == lengths == front_end.output_length(numbers).tolist()
    for number, length in zip(numbers.tolist(), lengths, strict=True):
        frames = jax.eval_shape(front_end, np.zeros((1, number), np.float32), np.array([number], np.int32))
        assert frames.values.shape[1] == length


def test_ends_are_mirrored_with_the_edge_sample_repeated():
    """A row that the test mirrors, read without mirroring, has the same frames."""
    front_end = KaldiFbank(rate_hz=8000, hop_ms=12.5, window_ms=32.0, num_mels=23)
    row = np.random.default_rng(0).integers(-9000, 9000, 130).astype(np.int16)  # shorter than a window
    num_frames = front_end.output_length(130)
    before = 256 // 2 - 100 // 2
    by_hand = np.concatenate([row, row[::-1]])[(np.arange(-before, 256 + (num_frames - 1) * 100 - before)) % 260]
    cut = KaldiFbank(rate_hz=8000, hop_ms=12.5, window_ms=32.0, num_mels=23, snip_edges=True)
    expected = jax.jit(cut)(by_hand[None], np.array([len(by_hand)]))
    found = jax.jit(front_end)(row[None], np.array([130]))
    assert found.values.shape == (1, num_frames, 23)
    assert_close(found.values, expected.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"num_mels": 0}, {"hop_ms": 30.0}, {"low_hz": 9000.0}, {"high_hz": 8001.0}])
def test_impossible_settings_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        KaldiFbank(**wrong)
