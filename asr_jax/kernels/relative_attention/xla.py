"""Attention with relative positions in blocks of queries, whose scores are computed again for the gradient (XLA)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.relative_attention.reference import attend

BLOCK = 128
"""Number of queries of a block."""


def blocked(
    query: Float[Array, "B T H C"],
    position_query: Float[Array, "B T H P"],
    key: Float[Array, "B T H C"],
    value: Float[Array, "B T H V"],
    offsets: Float[Array, "R H P"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    block: int = BLOCK,
) -> Float[Array, "B T H V"]:
    """Computes `api.relative_attention`. The scores of one block of queries are in memory at a time.

    Args:
        query: Queries.
        position_query: Queries of the positions.
        key: Keys.
        value: Values.
        offsets: R = 2T - 1 offsets.
        lengths: Number of valid keys of each row.
        scale: Factor of the scores.
        block: Number of queries of a block.
    """
    num_frames = query.shape[1]
    num_blocks = -(-num_frames // block)
    more = num_blocks * block - num_frames
    padded = jnp.pad(offsets, ((more, 0), (0, 0), (0, 0)))  # for the queries that fill the last block

    def in_blocks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0)))
        return jnp.moveaxis(x.reshape(x.shape[0], num_blocks, block, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def of_block(queries: tuple[Array, Array, Array]) -> Array:
        number, query, position_query = queries
        first = (num_blocks - 1 - number) * block
        window = jax.lax.dynamic_slice_in_dim(padded, first, block + num_frames - 1)
        return attend(query, position_query, key, value, window, lengths, scale=scale)

    mixed = jax.lax.map(of_block, (jnp.arange(num_blocks), in_blocks(query), in_blocks(position_query)))
    return jnp.moveaxis(mixed, 0, 1).reshape(query.shape[0], -1, *value.shape[2:])[:, :num_frames]
