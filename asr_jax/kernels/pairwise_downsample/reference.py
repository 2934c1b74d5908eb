"""Weighted sums of groups of frames: the specification of the other implementations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.shapes import DimSize
from asr_jax.kernels.log_space import NEVER


def group_weights(logits: Float[Array, " G"], lengths: Int[Array, " B"], num_frames: DimSize) -> Float[Array, "B S G"]:
    """Returns the weights of the frames of each group, which sum to 1 over the valid ones; 0 for the others.

    Args:
        lengths: Number of valid frames of each row.
        num_frames: Number of frames of the batch, which make S groups; the last one may lack frames.
    """
    size, num_groups = len(logits), -(-num_frames // len(logits))
    valid = length_mask(jnp.minimum(lengths, num_frames), num_groups * size).reshape(lengths.shape[0], num_groups, size)
    # The softmax of the valid logits alone: with all of them, the weights of a group could all be rounded to 0.
    weights = jax.nn.softmax(jnp.where(valid, logits.astype(jnp.float32)[None, None], NEVER), axis=-1)
    return jnp.where(valid, weights, 0.0)


def weighted_sums(x: Float[Array, "B T D"], weights: Float[Array, "B S G"]) -> Float[Array, "B S D"]:
    """Sums the frames of each group with its weights, in float32. Frames of weight 0 may have any values."""
    rows, num_groups, size = weights.shape
    more = num_groups * size - x.shape[1]
    groups = jnp.pad(x, ((0, 0), (0, more), (0, 0))).reshape(rows, num_groups, size, x.shape[2])
    weights = weights[..., None]
    valid = jnp.where(weights > 0, groups.astype(jnp.float32), 0.0)  # before the product, for its gradient
    return (valid * weights).sum(2).astype(x.dtype)
