"""Shift of attention scores from offsets to keys: the specification of the other implementations."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.core.shapes import is_static


def relative_shift(scores: Float[Array, "*rest T R"]) -> Float[Array, "*rest T S"]:
    """Computes `api.relative_shift`.

    In row-major order, the scores of a query start R - 1 elements after the scores of the query before it, so that two
    slices and two reshapes suffice.
    """
    *rest, num_queries, num_offsets = scores.shape
    if not num_queries:
        return jnp.zeros((*rest, 0, num_offsets + 1), scores.dtype)
    if not is_static(num_queries):  # the sizes of the slices below depend on whether there is one query
        flat = jnp.pad(scores, (*((0, 0) for _ in rest), (0, 0), (1, 0))).reshape(
            *rest, num_queries * (num_offsets + 1)
        )
        flat = flat[..., num_queries:].reshape(*rest, num_queries, num_offsets)
        return flat[..., : num_offsets - num_queries + 1]
    flat = scores.reshape(*rest, num_queries * num_offsets)[..., num_queries - 1 :]
    flat = flat[..., : num_queries * (num_offsets - 1)]
    if num_queries == 1:
        return scores
    num_keys = num_offsets - num_queries + 1
    return jnp.reshape(flat, (*rest, num_queries, num_offsets - 1))[..., :num_keys]
