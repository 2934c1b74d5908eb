"""Softmax of attention scores: gradients, and what the backward pass stores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.nn.attention import attention_softmax
from asr_jax.nn.conformer.modules import RelativeAttention
from asr_jax.nn.remat import rematerialised
from tests.support import assert_close

SCORES = np.random.default_rng(0).normal(size=(2, 3, 5, 7)).astype(np.float32)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_the_gradient_is_that_of_the_softmax(dtype, tolerance):
    factors = np.random.default_rng(1).normal(size=SCORES.shape).astype(np.float32)
    functions = (lambda scores: attention_softmax(scores, jnp.dtype(dtype))), jax.nn.softmax

    @jax.jit
    def gradients(scores):
        return [jax.grad(lambda scores, of=of: jnp.sum(of(scores) * factors))(scores) for of in functions]

    found, expected = jax.device_get(gradients(SCORES))
    assert found.dtype == np.float32
    assert_close(found, expected, atol=tolerance * float(np.abs(expected).max()))


def test_attention_with_positions_stores_one_value_per_query_and_key():
    frames, heads, width = 64, 2, 8
    x = jax.ShapeDtypeStruct((3, frames, width), jnp.float32)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            positions, allowed = jnp.ones((2 * frames - 1, width)), jnp.ones((3, 1, frames), bool)
            return RelativeAttention(heads, dtype=jnp.bfloat16)(x, positions, allowed, step=None)

    module = rematerialised(Layer, "elementwise")()

    def pull_back(x):
        return jax.vjp(module.apply, module.init(jax.random.key(0), x), x)[1]

    stored = jax.tree.leaves(jax.eval_shape(pull_back, x))
    by_query = [each for each in stored if each.size >= 3 * heads * frames * frames]
    assert [(each.shape, each.dtype) for each in by_query] == [((3, heads, frames, frames), jnp.bfloat16)]
