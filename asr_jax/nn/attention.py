"""Weights of multi-head attention, with a softmax whose gradient needs only its result."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from asr_jax.core.matmul_precision import float32_product
from asr_jax.core.shapes import DimSize
from asr_jax.kernels.gradients import with_gradient
from asr_jax.nn.remat import saved

# Added to the scores of masked keys. It is finite, which keeps the softmax of a query without valid keys finite. Its
# exp is exactly 0, and its sum with any score rounds to it in float32.
MASKED_SCORE = -1e10


def attention_softmax(scores: Float[Array, "*rest S"], dtype: DTypeLike) -> Float[Array, "*rest S"]:
    """Returns the softmax over the last axis in `dtype`, and stores only this for the backward pass.

    The scores are sums of products, which the policy "elementwise" (see `nn.remat`) would otherwise store: with
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


def chunk_mask(num_queries: DimSize, num_keys: DimSize, chunk_frames: Any, left_frames: Any) -> Bool[Array, "T S"]:
    """Returns a mask that is True for the keys in a query's chunk and for those up to `left_frames` before the chunk.

    The last query is at the last key. A chunk begins at the first query. There are at most as many queries as keys.
    """
    query, key = jnp.arange(num_queries)[:, None], jnp.arange(num_keys)[None] - (num_keys - num_queries)
    chunk = query // chunk_frames * chunk_frames
    return (key >= chunk - left_frames) & (key < chunk + chunk_frames)


def of_context(values: Sequence[DimSize], context: Int[Array, ""] | None) -> DimSize | Shaped[Array, ""]:
    """Returns the value of a context, from the values of all contexts, which are sizes or bools.

    Args:
        context: Index of the context that was drawn. None: the first one.
    """
    return values[0] if context is None or len(set(values)) == 1 else jnp.asarray(values)[context]


def attention_weights(
    query: Float[Array, "B U H C"], key: Float[Array, "B T H C"], allowed: Bool[Array, "#B #U T"]
) -> Float[Array, "B H U T"]:
    """Returns the softmax over keys of scaled products, in the dtype of `query`.

    Scores are float32: float16 would overflow, and bfloat16 would round the softmax coarsely.

    Args:
        allowed: Keys (last axis) that all queries or each query may attend to.
    """
    scores = float32_product("buhc,bthc->bhut", query, key)
    scores = scores * query.shape[-1] ** -0.5 + jnp.where(allowed[:, None], 0.0, MASKED_SCORE)
    return attention_softmax(scores, query.dtype)
