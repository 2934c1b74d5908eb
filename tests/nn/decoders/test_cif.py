"""Integration at once, compared with a loop over frames, and the times of labels."""

from functools import partial

import jax
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.nn.decoders.cif import BEGIN, CIF, Predictor, combined, integrate
from tests.support import assert_close

integrate_jit = jax.jit(integrate, static_argnames="size")


def one_by_one(weights, values):
    """Returns the vectors, and the first frame and the end of each label, of one row."""
    vectors, spans, left, vector, begin = [], [], 0.0, np.zeros(values.shape[1]), None
    for t, (weight, value) in enumerate(zip(weights.astype(np.float64), values, strict=True)):
        if begin is None and left + weight >= BEGIN and weight > 0:
            begin = t
        if left + weight < 1:
            left, vector = left + weight, vector + weight * value
            continue
        used = 1 - left
        vectors.append(vector + used * value)
        spans.append((t if begin is None else begin, t + 1))
        left = weight - used
        vector, begin = left * value, t + 1 if left >= BEGIN else None
    return vectors, spans


def test_integration_at_once_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    weights = rng.uniform(0, 0.9, (5, 30)).astype(np.float32) * (np.arange(30) < rng.integers(8, 31, 5)[:, None])
    values = rng.normal(size=(5, 30, 4)).astype(np.float32)

    @jax.jit
    def run(weights, values):
        fired = integrate(weights, size=30)
        return fired, combined(fired, values)

    fired, vectors = jax.device_get(run(weights, values))
    for row in range(5):
        expected, spans = one_by_one(weights[row], values[row])
        num = len(expected)
        assert fired.is_fire[row].sum() == num
        assert_close(vectors[row, :num], expected, atol=1e-5)
        assert not vectors[row, num:].any()
        assert list(zip(fired.starts[row, :num].tolist(), fired.ends[row, :num].tolist(), strict=True)) == spans
        assert_close(fired.shares[row, :num].sum(-1), 1, rtol=1e-5)


@jax.jit
def of_labels(frames, weights, numbers):
    return Predictor(CIF()).of_labels(frames, weights, numbers, size=12)


@partial(jax.jit, static_argnames="settings")
def found_by(frames, weights, *, settings):
    return Predictor(settings).found(frames, weights)


@pytest.mark.parametrize("seed", range(3))
def test_scaled_weights_fire_once_for_each_label(seed):
    """Whatever the rounding of the scaled weights, the last label is complete."""
    rng = np.random.default_rng(seed)
    frames = Frames(rng.normal(size=(64, 40, 3)).astype(np.float32), np.full(64, 40, np.int32))
    weights, numbers = rng.uniform(0.1, 0.5, (64, 40)).astype(np.float32), rng.integers(1, 12, 64)
    vectors, fired = jax.device_get(of_labels(frames, weights, numbers))
    np.testing.assert_array_equal(fired.is_fire.sum(1), numbers)
    assert_close(fired.shares.sum((1, 2)), numbers, rtol=1e-4)
    assert (np.abs(vectors[np.arange(64), numbers - 1]).max(-1) > 0).all()


def test_a_label_after_a_pause_begins_after_it():
    weights = np.float32([[0.6, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 0.6]])
    fired = jax.device_get(integrate_jit(weights, size=3))
    assert (fired.starts[0, :2].tolist(), fired.ends[0, :2].tolist()) == ([0, 2], [2, 8])  # begun in the frame before 2
    weights[0, 1] = 0.42  # the remainder is below the share at which a label begins
    fired = jax.device_get(integrate_jit(weights, size=3))
    assert (fired.starts[0, :2].tolist(), fired.ends[0, :2].tolist()) == ([0, 6], [2, 8])


def test_the_tail_completes_a_last_label():
    frames = Frames(np.zeros((2, 4, 2), np.float32), np.array([4, 3], np.int32))
    weights = np.float32([[0.4, 0.4, 0.4, 0.4], [0.6, 0.5, 0.4, 0.0]])  # 1.6 and 1.5
    for tail, expected in ((0.45, [2, 1]), (0.3, [1, 1]), (0.0, [2, 2])):
        _, number, fired = jax.device_get(found_by(frames, weights, settings=CIF(tail=tail)))
        assert number.tolist() == expected, tail
        assert fired.ends.max() <= 4
        assert fired.ends[1].max() <= 3


@pytest.mark.parametrize("settings", [CIF(), CIF(tail=0.0), CIF(tail=0.0, smooth_factor=3.0)])
def test_times_of_labels_do_not_overlap(settings):
    """Also if the last label is not completed, or if there are more labels than frames that complete one."""
    rng = np.random.default_rng(0)
    frames = Frames(np.zeros((32, 20, 2), np.float32), rng.integers(10, 21, 32).astype(np.int32))
    inside = np.arange(20) < frames.lengths[:, None]
    weights = np.float32(rng.uniform(0, 0.9, (32, 20)) * inside * settings.smooth_factor)
    _, number, fired = jax.device_get(found_by(frames, weights, settings=settings))
    for row, count in enumerate(number.tolist()):
        starts, ends = fired.starts[row, :count], fired.ends[row, :count]
        assert (starts[1:] >= ends[:-1]).all()
        assert (starts <= ends).all()
        assert ends[-1] == frames.lengths[row] or fired.is_fire[row].sum() == count
        assert ends.max() <= frames.lengths[row]
    if not settings.tail:
        assert (fired.is_fire.sum(1) < number).any()


def test_a_last_label_that_is_not_completed_ends_with_the_frames():
    # The second row is not used: it gives the program of the tests above.
    frames = Frames(np.zeros((2, 4, 2), np.float32), np.array([4, 4], np.int32))
    weights = np.float32([[0.6, 0.5, 0.4, 0.1], [0.0] * 4])
    _, number, fired = jax.device_get(found_by(frames, weights, settings=CIF(tail=0.0)))
    assert number[0] == 2
    assert (fired.starts[0, :2].tolist(), fired.ends[0, :2].tolist()) == ([0, 2], [2, 4])
