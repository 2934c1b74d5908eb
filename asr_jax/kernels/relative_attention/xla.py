"""Attention with relative positions in blocks of queries, whose scores are computed again for the gradient (XLA)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.relative_attention.reference import attend

BLOCK = 128
"""Number of queries of a block."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def blocked(
    query: Float[Array, "B T H C"],
    position_query: Float[Array, "B T H P"],
    key: Float[Array, "B T H C"],
    value: Float[Array, "B T H V"],
    offsets: Float[Array, "R H P"],
    lengths: Int[Array, " B"],
    scale: float,
    block: int = BLOCK,
) -> Float[Array, "B T H V"]:
    """Computes `api.relative_attention`. The scores of one block of queries are in memory at a time.

    The gradient is a rule of its own, because a policy of rematerialisation around it would keep the scores of all
    blocks.

    A block has `block` queries.
    """
    return _in_blocks(query, position_query, key, value, offsets, lengths, scale, block)


def _in_blocks(
    query: Array, position_query: Array, key: Array, value: Array, offsets: Array, lengths: Array, scale: float,
    block: int,
) -> Array:  # fmt: skip
    num_frames = query.shape[1]
    num_blocks = -(-num_frames // block)
    more = num_blocks * block - num_frames
    padded = jnp.pad(offsets, ((more, 0), (0, 0), (0, 0)))  # for the queries that fill the last block

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0)))
        return jnp.moveaxis(x.reshape(x.shape[0], num_blocks, block, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def of_block(queries: tuple[Array, Array, Array]) -> Array:
        number, query, position_query = queries
        first = (num_blocks - 1 - number) * block
        window = jax.lax.dynamic_slice_in_dim(padded, first, block + num_frames - 1)
        return attend(query, position_query, key, value, window, lengths, scale=scale)

    mixed = jax.lax.map(of_block, (jnp.arange(num_blocks), split(query), split(position_query)))
    return jnp.moveaxis(mixed, 0, 1).reshape(query.shape[0], -1, *value.shape[2:])[:, :num_frames]


def _forward(*given: Any) -> tuple[Array, tuple[Array, ...]]:
    return _in_blocks(*given), given[:6]


def _backward(scale: float, block: int, kept: tuple[Array, ...], cotangent: Array) -> tuple[Array | None, ...]:
    *arrays, lengths = kept

    def function(*arrays: Array) -> Array:
        query, position_query, key, value, offsets = arrays
        return _in_blocks(query, position_query, key, value, offsets, lengths, scale, block)

    _, transpose = jax.vjp(function, *arrays)
    return *transpose(cotangent), None


blocked.defvjp(_forward, _backward)
