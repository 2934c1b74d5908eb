"""Greedy search of transducers, compared with a loop over frames, and values that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.search.transducer_greedy import Decision, greedy_transducer_search
from tests.support import approx

BLANK, MOST = 3, 2
LENGTHS = np.array([9, 9, 0, 5], np.int32)


def one_by_one(logits, jumps_of, length):
    """A loop over frames of one utterance; logits [T U V], whose second axis is the number of labels before."""
    found, t, at, score = [], 0, 0, 0.0
    while t < length:
        values = logits[t, len(found)]
        label, jump = int(values.argmax()), int(jumps_of[t])
        score += values[label] - np.logaddexp.reduce(values)
        if label == BLANK:
            t, at = t + max(jump, 1), 0
            continue
        found.append((label, t, min(t + max(jump, 1), length)))
        at += 1
        jump = max(jump, int(at >= MOST))
        t, at = t + jump, 0 if jump else at
    return found, score


@pytest.mark.parametrize("durations", [False, True])
def test_it_equals_a_loop_over_frames_and_nan_leaves_no_text(durations):
    random = np.random.default_rng(1)
    logits = random.normal(0, 2, (4, 9, 9 * MOST + 1, 4)) + np.array([0, 0, 0, 1.5])[None, None, None]
    jumps_of = random.integers(0, 3, (4, 9)) if durations else np.zeros((4, 9), int)
    broken = logits.copy()
    broken[0, 3] = np.nan  # the others are computed together with it
    jumps_of[0] = np.minimum(jumps_of[0], 1)

    @jax.jit
    def search(logits):
        def decide(at, num_labels):
            rows = jnp.arange(4)[:, None]
            values = jnp.asarray(logits, jnp.float32)[rows, at, num_labels[:, None]]
            best, labels = values.max(-1), values.argmax(-1).astype(jnp.int32)
            jumps = jnp.asarray(jumps_of, jnp.int32)[rows, at]
            jumps = jnp.where(labels == BLANK, jnp.maximum(jumps, 1), jumps)
            return Decision(labels, best - jax.nn.logsumexp(values, axis=-1), jumps)

        return greedy_transducer_search(
            jnp.asarray(LENGTHS), 9, decide=decide, start=jnp.zeros(4, jnp.int32),
            advance=lambda before, labels: before + 1, blank_id=BLANK, max_symbols=MOST,
        )[0]  # fmt: skip

    for given in (logits, broken):
        found = jax.device_get(search(given))
        for row in range(4):
            (each,) = found.sequences(row)
            if np.isnan(given[row]).any():
                assert (each.tokens, np.isnan(each.score)) == ((), True)
                continue
            expected, score = one_by_one(given[row], jumps_of[row], LENGTHS[row])
            assert list(zip(each.tokens, each.starts, each.ends, strict=True)) == expected
            assert each.score == approx(score, abs=1e-4)
    assert len(one_by_one(logits[1], jumps_of[1], 9)[0]) > 2


def test_a_duration_ends_with_the_audio():
    """The last label of a row with three frames has a duration of four."""

    def decide(at, prediction):
        return Decision(jnp.zeros_like(at), jnp.zeros(at.shape), jnp.full_like(at, 4))

    search = greedy_transducer_search(
        jnp.array([3, 8]), 8, decide=decide, start=jnp.zeros(2), advance=lambda before, labels: before,
        blank_id=BLANK, max_symbols=MOST,
    )  # fmt: skip
    found = jax.device_get(search[0])
    assert [found.sequences(row)[0].ends for row in range(2)] == [(3,), (4, 8)]
