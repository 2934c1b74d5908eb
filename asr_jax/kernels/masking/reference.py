"""Masks made from lengths, and arrays without their padding: the specification of the other implementations."""

import functools
import operator

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask, zero_padding


def masked_sum(lengths: Int[Array, " B"], *arrays: Float[Array, "B _ _"], axis: int) -> Float[Array, "B _ _"]:
    """Adds arrays of equal shape, whose frames are along axis 1 or 2, and sets padding to 0."""
    total = functools.reduce(operator.add, arrays)
    if axis == 1:
        return zero_padding(total, lengths)
    return jnp.where(length_mask(lengths, total.shape[axis])[:, None], total, 0)


def mask(
    lengths: Int[Array, " B"], heads: int, queries: int, keys: int, *, inverted: bool = False
) -> Bool[Array, "B H Q K"]:
    """Computes `api.attention_mask_4d`, from which the other masks follow.

    Args:
        inverted: Whether the mask is True for all other pairs instead.
    """
    valid = length_mask(lengths, queries)[:, None, :, None] & length_mask(lengths, keys)[:, None, None]
    return jnp.broadcast_to(valid != inverted, (len(lengths), heads, queries, keys))
