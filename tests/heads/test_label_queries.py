"""Queries of Paraformer-v2, compared with loops over frames."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.heads.label_queries import (
    boundary_targets,
    gated_queries,
    greedy_runs,
    mean_over,
    members,
    runs_of_text,
    spans,
)
from tests.support import assert_close

BLANK, SIZE, FRAMES = 4, 9, 9
LENGTHS = np.array([9, 6, 0], np.int32)


def posteriors(seed):
    logits = np.random.default_rng(seed).normal(size=(3, FRAMES, 5)) * 2
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def log_probs(seed):
    return Frames(np.log(posteriors(seed)).astype(np.float32), LENGTHS)


def segments(path):
    """Returns first frame, end and label of each run of equal labels that are not the blank."""
    ends = itertools.accumulate(len(list(run)) for _, run in itertools.groupby(path))
    starts = [0, *ends]
    return [(a, b, path[a]) for a, b in itertools.pairwise(starts) if path[a] != BLANK]


def test_greedy_runs_are_averaged():
    given = log_probs(0)

    @jax.jit
    def run(given):
        runs = greedy_runs(given, blank_id=BLANK)
        return runs, mean_over(members(runs, SIZE), jnp.exp(given.values)), spans(runs, SIZE)

    runs, means, (starts, ends) = jax.device_get(run(given))
    for row, length in enumerate(LENGTHS):
        values = np.exp(given.values[row, :length])
        expected = segments(values.argmax(-1).tolist())
        assert runs.lengths[row] == len(expected)
        for place, (start, end, label) in enumerate(expected):
            assert (starts[row, place], ends[row, place]) == (start, end)
            assert (runs.labels[row, start:end] == label).all()
            assert_close(means[row, place], values[start:end].mean(0), rtol=1e-5)
        assert not means[row, len(expected) :].any()
    assert runs.lengths[0] > 1


def test_uniform_runs_share_frames_with_the_blanks():
    labels, numbers = np.array([[1, 1], [2, 0], [0, 0]], np.int32), np.array([2, 1, 0], np.int32)
    run = jax.jit(partial(runs_of_text, mode="uniform", blank_id=BLANK))
    runs = jax.device_get(run(log_probs(0), labels, numbers))
    assert runs.query[0].tolist() == [-1, -1, 0, 0, -1, -1, 1, 1, -1]  # five states of nine frames
    assert runs.query[1].tolist() == [-1, -1, 0, 0, -1, -1, -1, -1, -1]
    assert runs.labels[1].tolist() == [4, 4, 2, 2, 4, 4, 4, 4, 4]
    assert runs.query[2].tolist() == [-1] * 9
    assert runs.lengths.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "mode", ["viterbi", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("uniform", "greedy"))]
)
def test_no_gradient_passes_through_the_choice_of_frames(mode):

    def first(values):
        labels, numbers = jnp.array([[1, 2], [2, 0], [0, 0]]), jnp.array([2, 1, 0])
        runs = runs_of_text(Frames(values, jnp.asarray(LENGTHS)), labels, numbers, mode=mode, blank_id=BLANK)
        return mean_over(members(runs, 2), jnp.exp(values))[0, 0, 1], runs

    gradient, runs = jax.device_get(jax.jit(jax.grad(first, has_aux=True))(log_probs(2).values))
    inside = runs.query[0] == 0
    expected = np.where(inside, np.exp(log_probs(2).values[0, :, 1]) / inside.sum(), 0)
    assert_close(gradient[0, :, 1], expected, rtol=1e-5)
    assert not gradient[1:].any()


def test_gated_queries_are_those_of_a_loop():
    shallow, final, boundaries = posteriors(3), posteriors(4), np.random.default_rng(5).uniform(size=(3, FRAMES))

    @jax.jit
    def run(given, shallow, final, boundaries):
        runs = greedy_runs(given, blank_id=BLANK)
        return gated_queries(shallow, final, runs, boundaries, size=SIZE)

    features, confidences = jax.device_get(run(log_probs(4), *map(np.float32, (shallow, final, boundaries))))
    assert features.shape == (3, SIZE, 14)
    for row, length in enumerate(LENGTHS):
        for place, (start, end, label) in enumerate(segments(final[row, :length].argmax(-1).tolist())):
            low, high = shallow[row, start:end], final[row, start:end]
            confidence = (low[:, label] + high[:, label]) / 2
            gate = 1 / (1 + np.exp(-12 * (confidence - 0.55))) + 0.05
            left = boundaries[row, start - 1] if place else 1.0
            right = boundaries[row, end - 1]
            expected = [
                *(gate @ low / gate.sum()), *(gate @ high / gate.sum()), confidence.mean(), low[:, label].mean(), left,
                right,
            ]  # fmt: skip
            amplified = np.array(expected) * (1 + 0.25 * (1 - left) + 0.25 * (1 - right))
            assert_close(features[row, place], amplified, rtol=1e-4)
            assert_close(confidences[row, place], max(confidence.mean(), 0.05), rtol=1e-5)


def test_boundary_targets_are_smoothed_within_the_row():
    labels = np.array([[1, 1, 1, 4, 4, 2, 4], [4, 1, 1, 1, 1, 1, 1]])
    of = jax.jit(boundary_targets)
    targets = of(labels, np.array([7, 4]))
    assert targets.tolist() == [[0, 0.25, 1, 0.25, 1, 1, 0.25], [1, 0.25, 0, 0, 0, 0, 0]]
    assert not np.any(of(labels, np.array([3, 1])))
