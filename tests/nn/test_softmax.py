"""Softmax of attention scores: gradients, and what the backward pass stores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.nn.conformer import RelativeAttention
from asr_jax.nn.remat import rematerialised
from asr_jax.nn.softmax import attention_softmax
from tests.support import assert_close

SCORES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5, 7)), jnp.float32)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_the_gradient_is_that_of_the_softmax(dtype, tolerance):
    factors = jnp.asarray(np.random.default_rng(1).normal(size=SCORES.shape), jnp.float32)
    found = jax.grad(lambda scores: jnp.sum(attention_softmax(scores, jnp.dtype(dtype)) * factors))(SCORES)
    expected = jax.grad(lambda scores: jnp.sum(jax.nn.softmax(scores) * factors))(SCORES)
    assert found.dtype == jnp.float32
    assert_close(found, expected, atol=tolerance * float(jnp.abs(expected).max()))


def test_attention_with_positions_stores_one_value_per_query_and_key():
    frames, heads, width = 64, 2, 8
    x, positions = jnp.ones((3, frames, width)), jnp.ones((2 * frames - 1, width))
    allowed = jnp.ones((3, 1, frames), bool)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return RelativeAttention(heads, dtype=jnp.bfloat16)(x, positions, allowed, step=None)

    module = rematerialised(Layer, "elementwise")()
    params = module.init(jax.random.key(0), x)
    stored = jax.tree.leaves(jax.vjp(module.apply, params, x)[1])
    by_query = [each for each in stored if each.size >= 3 * heads * frames * frames]
    assert [(each.shape, each.dtype) for each in by_query] == [((3, heads, frames, frames), jnp.bfloat16)]
