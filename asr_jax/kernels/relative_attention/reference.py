"""Attention with relative positions as plain products and a softmax: the specification of the other implementations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.relative_shift.reference import relative_shift


def attend(
    query: Float[Array, "B T H C"],
    position_query: Float[Array, "B T H P"],
    key: Float[Array, "B S H C"],
    value: Float[Array, "B S H V"],
    offsets: Float[Array, "R H P"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
) -> Float[Array, "B T H V"]:
    """Computes `api.relative_attention` for some consecutive queries.

    Args:
        offsets: R = T + S - 1 offsets; key s has offset number T - 1 + s - t from query t.
        lengths: Number of valid keys of each row.
        scale: Factor of the scores.
    """
    scores = jnp.einsum("bthc,bshc->bhts", query, key, preferred_element_type=jnp.float32)
    by_offset = jnp.einsum("bthp,rhp->bhtr", position_query, offsets, preferred_element_type=jnp.float32)
    scores = scale * (scores + relative_shift(by_offset))
    valid = length_mask(lengths, key.shape[1])[:, None, None]
    weights = jax.nn.softmax(jnp.where(valid, scores, NEVER), axis=-1)
    weights = jnp.where(valid, weights, 0.0).astype(value.dtype)  # rows without keys have weights otherwise
    mixed = jnp.einsum("bhts,bshv->bthv", weights, value, preferred_element_type=jnp.float32)
    return mixed.astype(value.dtype)
