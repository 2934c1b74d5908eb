"""Masks made from lengths, and arrays without their padding: the specification of the other implementations."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask, zero_padding


def masked(x: Float[Array, "B _ _"], lengths: Int[Array, " B"], axis: int) -> Float[Array, "B _ _"]:
    """Sets padding to 0.

    Args:
        x: Array whose frames are along axis 1 or 2.
        lengths: Number of valid frames of each row.
    """
    if axis == 1:
        return zero_padding(x, lengths)
    return jnp.where(length_mask(lengths, x.shape[axis])[:, None], x, 0)


def masked_sum(
    residual: Float[Array, "B T C"], update: Float[Array, "B T C"], lengths: Int[Array, " B"]
) -> Float[Array, "B T C"]:
    """Computes `api.residual_add_mask_time`.

    Args:
        residual: First summand.
        update: Second summand.
        lengths: Number of valid frames of each row.
    """
    return zero_padding(residual + update, lengths)


def mask(
    lengths: Int[Array, " B"], heads: int, queries: int, keys: int, *, inverted: bool = False
) -> Bool[Array, "B H Q K"]:
    """Computes `api.attention_mask_4d`, from which the other masks follow.

    Args:
        lengths: Number of valid frames of each row.
        inverted: Whether the mask is True for all other pairs instead.
    """
    valid = length_mask(lengths, queries)[:, None, :, None] & length_mask(lengths, keys)[:, None, None]
    return jnp.broadcast_to(valid != inverted, (len(lengths), heads, queries, keys))
