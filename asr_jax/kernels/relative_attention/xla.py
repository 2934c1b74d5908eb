"""Attention with relative positions in blocks of queries, whose scores are computed again for the gradient (XLA)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from asr_jax.kernels.relative_attention.reference import attend

BLOCK = 128
"""Number of queries of a block."""


def forward(
    query: Array, position_query: Array, key: Array, value: Array, offsets: Array, lengths: Array, *, scale: float
) -> tuple[Array, tuple[Array, ...]]:
    """Computes `api.relative_attention` with the scores of one block of queries in memory at a time.

    The gradient is a rule of its own, because a policy of rematerialisation around it would keep the scores of all
    blocks.
    """
    given = (query, position_query, key, value, offsets, lengths)
    return _in_blocks(*given, scale), given


def backward(kept: tuple[Array, ...], cotangent: Array, *, scale: float) -> tuple[Array | None, ...]:
    """Computes the gradients of `api.relative_attention`."""
    *arrays, lengths = kept

    def mixed(query: Array, position_query: Array, key: Array, value: Array, offsets: Array) -> Array:
        return _in_blocks(query, position_query, key, value, offsets, lengths, scale)

    _, transpose = jax.vjp(mixed, *arrays)
    return *transpose(cotangent), None


def _in_blocks(
    query: Array, position_query: Array, key: Array, value: Array, offsets: Array, lengths: Array, scale: float
) -> Array:
    num_frames = query.shape[1]
    num_blocks = -(-num_frames // BLOCK)
    more = num_blocks * BLOCK - num_frames
    padded = jnp.pad(offsets, ((more, 0), (0, 0), (0, 0)))  # for the queries that fill the last block

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0)))
        return jnp.moveaxis(x.reshape(x.shape[0], num_blocks, BLOCK, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def of_block(queries: tuple[Array, Array, Array]) -> Array:
        number, query, position_query = queries
        first = (num_blocks - 1 - number) * BLOCK
        window = jax.lax.dynamic_slice_in_dim(padded, first, BLOCK + num_frames - 1)
        return attend(query, position_query, key, value, window, lengths, scale=scale)

    mixed = jax.lax.map(of_block, (jnp.arange(num_blocks), split(query), split(position_query)))
    return jnp.moveaxis(mixed, 0, 1).reshape(query.shape[0], -1, *value.shape[2:])[:, :num_frames]
