"""Softmax of attention scores whose gradient needs only its result."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.kernels.gradients import with_gradient
from asr_jax.nn.remat import saved


def attention_softmax(scores: Float[Array, "*rest S"], dtype: DTypeLike) -> Float[Array, "*rest S"]:
    """Returns the softmax over the last axis in `dtype`, and stores only this for the backward pass.

    The policy "elementwise" (see `nn.remat`) would otherwise store the products of which the scores are sums: with
    relative positions, three float32 values per query and key instead of one value in `dtype`.
    """

    def forward(scores: Array) -> tuple[Array, Array]:
        weights = saved(jax.nn.softmax(scores, axis=-1).astype(dtype))
        return weights, weights

    def backward(weights: Array, cotangent: Array) -> tuple[Array]:
        weights, cotangent = weights.astype(jnp.float32), cotangent.astype(jnp.float32)
        product = weights * cotangent
        return ((product - weights * jnp.sum(product, axis=-1, keepdims=True)).astype(scores.dtype),)

    return with_gradient(forward, backward)(scores)
