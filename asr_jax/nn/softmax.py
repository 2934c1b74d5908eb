"""Softmax of attention scores whose gradient needs only its result."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.nn.remat import saved


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def attention_softmax(scores: Float[Array, "*rest S"], dtype: DTypeLike) -> Float[Array, "*rest S"]:
    """Returns the softmax over the last axis in `dtype`, and stores only this for the backward pass.

    The policy "elementwise" (see `nn.remat`) would otherwise store the products of which the scores are sums: with
    relative positions, three float32 values per query and key instead of one value in `dtype`.
    """
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _forward(scores: Array, dtype: DTypeLike) -> tuple[Array, tuple[Array, Array]]:
    weights = saved(attention_softmax(scores, dtype))
    return weights, (weights, jnp.zeros((0,), scores.dtype))


def _backward(dtype: DTypeLike, kept: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    weights, cotangent = kept[0].astype(jnp.float32), cotangent.astype(jnp.float32)
    product = weights * cotangent
    return ((product - weights * jnp.sum(product, axis=-1, keepdims=True)).astype(kept[1].dtype),)


attention_softmax.defvjp(_forward, _backward)
