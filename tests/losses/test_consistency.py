"""The divergence between views against its definition and icefall's formula, and its independence of padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.losses.consistency import view_divergence
from tests.support import assert_close, log_softmax

LENGTHS = np.array([7, 4, 0], np.int32)
"""Lengths of utterances in frames."""


def some_logits(views=2, seed=0):
    """Returns random logits; the views of an utterance are successive rows."""
    return 2 * np.random.default_rng(seed).normal(size=(len(LENGTHS) * views, 7, 5)).astype(np.float32)


@jax.jit
def of_two(logits, lengths):
    """Returns the divergence of each row, and the gradient of their weighted sum."""

    def total(logits):
        rows = view_divergence(logits, lengths, views=2)
        return jnp.sum(rows * jnp.arange(1.0, len(rows) + 1)), rows

    gradient, rows = jax.grad(total, has_aux=True)(logits)
    return rows, gradient


def test_is_the_divergence_from_the_next_view_and_only_the_own_side_has_a_gradient():
    logits, lengths = some_logits(), np.repeat(LENGTHS, 2)
    rows, gradient = jax.device_get(of_two(logits, lengths))
    for row in range(len(logits)):
        own, other = log_softmax(logits[row]), log_softmax(logits[row ^ 1])
        valid = np.arange(7) < lengths[row]
        expected = (np.exp(other) * (other - own)).sum(-1)[valid].sum()
        assert_close(rows[row], expected, rtol=1e-5, atol=1e-6)
        towards = (row + 1) * (np.exp(own) - np.exp(other)) * valid[:, None]
        assert_close(gradient[row], towards, rtol=1e-4, atol=1e-6)


def test_equals_icefalls_arrangement_of_a_batch_in_two_halves():
    """icefall has all first views, then all second ones; the detached other half is the target; padding is 0."""
    logits = some_logits(seed=1)
    halves = log_softmax(np.concatenate([logits[0::2], logits[1::2]]))
    targets = np.roll(halves, len(halves) // 2, axis=0)
    pointwise = np.exp(targets) * (targets - halves)  # torch.nn.functional.kl_div(..., log_target=True)
    is_padding = np.arange(7)[None, :, None] >= np.tile(LENGTHS, 2)[:, None, None]
    expected = np.where(is_padding, 0.0, pointwise).sum()
    rows, _ = of_two(logits, np.repeat(LENGTHS, 2))
    assert_close(np.sum(rows), expected, rtol=1e-5)


def test_views_that_agree_have_none_and_padding_has_no_influence():
    logits, lengths = some_logits(seed=2), np.repeat(LENGTHS, 2)
    same = np.repeat(logits[::2], 2, axis=0)
    rows, gradient = of_two(same, lengths)
    assert not np.any(rows)
    assert_close(gradient, 0.0, atol=1e-6)
    plain = of_two(logits, lengths)
    noisy = of_two(np.where(np.arange(7)[None, :, None] < lengths[:, None, None], logits, np.nan), lengths)
    jax.tree.map(np.testing.assert_array_equal, noisy, plain)


def test_more_views_go_round_and_half_precision_is_computed_in_float32():
    logits, divergence = some_logits(views=3, seed=3), jax.jit(partial(view_divergence, views=3))
    rows = np.asarray(divergence(logits, np.full(9, 7)))
    probs = np.exp(log_softmax(logits))
    expected = (probs[2] * np.log(probs[2] / probs[1])).sum()
    assert_close(rows[1], expected, rtol=1e-5)
    assert_close(rows[2], (probs[0] * np.log(probs[0] / probs[2])).sum(), rtol=1e-5)
    half = jax.eval_shape(divergence, jax.ShapeDtypeStruct(logits.shape, jnp.bfloat16), np.full(9, 7))
    assert half.dtype == jnp.float32


def test_views_lie_on_one_device_and_nothing_is_moved():
    logits, lengths = np.tile(some_logits(seed=4)[:4], (2, 1, 1)), np.full(8, 6, np.int32)
    rows, divergence = by_rows(data_mesh(4)), partial(view_divergence, views=2)
    given = jax.device_put((logits, lengths), rows)
    compiled = jax.jit(divergence, out_shardings=rows).lower(*given).compile()
    text = compiled.as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))
    assert_close(compiled(*given), jax.jit(divergence)(logits, lengths), rtol=1e-6)
