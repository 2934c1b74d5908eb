"""Attention with relative positions for TPUs: the scores of a block of queries stay in VMEM (Pallas)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.relative_shift.mosaic_tpu import staggered
from asr_jax.kernels.tiles_tpu import (
    DEFAULT_BYTES,
    VMEM_BYTES,
    bytes_of,
    bytes_of_blocks,
    product,
    whole_tiles,
)

BLOCK = 128
"""Number of queries of a program. Frames are padded to a multiple of it."""
MOST_FRAMES = 2048
"""Largest number of frames; programs for more were not compiled."""
SCORES = 12
"""Number of arrays of scores of a block of queries that a program keeps beside its blocks; 8 to 11 were measured for a
v5e."""


def vmem_bytes(*given: Any) -> int:
    """Returns an estimate of the VMEM of a program for the gradient, which needs more than one for the values.

    Args:
        given: Queries, queries of the positions, keys, values and offsets, or descriptions of them.
    """
    arrays = jax.eval_shape(_padded, *given)
    blocks = [*arrays, arrays[3], *(_per_query(arrays[0]) for _ in range(2))]
    gradients = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in arrays]
    scores = bytes_of((BLOCK, arrays[2].shape[2] + BLOCK), 4)
    specs = [*_specs(arrays), *map(_of_block, blocks[5:]), *_specs(arrays)]
    return bytes_of_blocks(specs, [*blocks, *gradients]) + SCORES * scores


def forward(
    query: Array, position_query: Array, key: Array, value: Array, offsets: Array, lengths: Array, *, scale: float
) -> tuple[Array, tuple[Array, ...]]:
    """Computes `api.relative_attention`, and what its gradient needs."""
    given = (query, position_query, key, value, offsets)
    arrays = _padded(*given)
    num_rows, num_heads, num_frames, _ = arrays[0].shape
    outputs = (jax.ShapeDtypeStruct(arrays[3].shape, value.dtype), _per_query(arrays[0]))
    mixed, logs = pl.pallas_call(
        functools.partial(_forward_kernel, scale=scale),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(num_heads, num_rows, num_frames // BLOCK),
            in_specs=_specs(arrays),
            out_specs=[_of_block(each) for each in outputs],
        ),
        out_shape=outputs,
        compiler_params=_params(given, "parallel"),
        name="relative_attention",
    )(lengths, *arrays)
    return _unpadded(mixed, query.shape[1]), (*given, lengths, mixed, logs)


def backward(kept: tuple[Array, ...], cotangent: Array, *, scale: float) -> tuple[Array | None, ...]:
    """Computes the gradients of `api.relative_attention`."""
    *given, lengths, mixed, logs = kept
    arrays = _padded(*given)
    num_rows, num_heads, num_frames, _ = arrays[0].shape
    of_mixed = _with_frames(cotangent, num_frames)
    sums = jnp.sum(of_mixed.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1, keepdims=True)
    found = pl.pallas_call(
        functools.partial(_backward_kernel, scale=scale),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(num_heads, num_rows, num_frames // BLOCK),
            in_specs=[*_specs(arrays), *(_of_block(each) for each in (of_mixed, logs, sums))],
            out_specs=_specs(arrays),
        ),
        out_shape=[jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in arrays],
        # The gradients of keys, values and offsets are sums over programs, which run one after the other.
        compiler_params=_params(given, "arbitrary"),
        name="relative_attention_gradient",
    )(lengths, *arrays, of_mixed, logs, sums)
    offsets, before = given[4], num_frames - given[0].shape[1]
    of_offsets = jnp.swapaxes(found[4], 0, 1)[before : before + len(offsets)]
    of_given = (*(_unpadded(each, given[0].shape[1]) for each in found[:4]), of_offsets)
    return (*(each.astype(of.dtype) for each, of in zip(of_given, given, strict=True)), None)


def _forward_kernel(
    lengths: Any,
    query: Any,
    position_query: Any,
    key: Any,
    value: Any,
    offsets: Any,
    mixed: Any,
    logs: Any,
    *,
    scale: float,
) -> None:
    scores, valid, _ = _scores(lengths, query, position_query, key, offsets, scale)
    most = jnp.max(scores, axis=1, keepdims=True)
    weights = jnp.where(valid, jnp.exp(scores - most), 0.0)
    total = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), jnp.finfo(jnp.float32).tiny)  # 0 without keys
    mixed[...] = product((weights / total).astype(value.dtype), value[...], 1, 0).astype(mixed.dtype)
    logs[...] = most + jnp.log(total)


def _backward_kernel(
    lengths: Any,
    query: Any,
    position_query: Any,
    key: Any,
    value: Any,
    offsets: Any,
    of_mixed: Any,
    logs: Any,
    sums: Any,
    of_query: Any,
    of_position_query: Any,
    of_key: Any,
    of_value: Any,
    of_offsets: Any,
    *,
    scale: float,
) -> None:
    row, block = pl.program_id(1), pl.program_id(2)

    @pl.when(block == 0)
    def _() -> None:
        of_key[...] = jnp.zeros_like(of_key)
        of_value[...] = jnp.zeros_like(of_value)

    @pl.when((row == 0) & (block == 0))
    def _() -> None:
        of_offsets[...] = jnp.zeros_like(of_offsets)

    scores, valid, window = _scores(lengths, query, position_query, key, offsets, scale)
    weights = jnp.where(valid, jnp.exp(scores - logs[...]), 0.0)
    of_weights = product(of_mixed[...], value[...], 1, 1)
    of_scores = scale * weights * (of_weights - sums[...])
    dtype = key.dtype
    of_value[...] += product(weights.astype(dtype), of_mixed[...], 0, 0)
    low = of_scores.astype(dtype)
    of_query[...] = product(low, key[...], 1, 0)
    of_key[...] += product(low, query[...], 0, 0)
    by_offset = _by_offset(of_scores).astype(dtype)
    of_position_query[...] = product(by_offset, offsets[window, :], 1, 0)
    of_offsets[window, :] += product(by_offset, position_query[...], 0, 0)


def _scores(
    lengths: Any, query: Any, position_query: Any, key: Any, offsets: Any, scale: float
) -> tuple[Array, Array, Any]:
    """Scores of a block of queries, which keys are valid, and the rows of the block's offsets."""
    num_frames = key.shape[0]
    width = num_frames + BLOCK
    window = pl.ds((pl.num_programs(2) - 1 - pl.program_id(2)) * BLOCK, width)
    by_offset = product(position_query[...], offsets[window, :], 1, 1)
    # Row r of the block begins with offset BLOCK - 1 - r of the window.
    by_offset = pltpu.roll(by_offset, width - (BLOCK - 1), 1, stride=1, stride_axis=0)[:, :num_frames]
    valid = jax.lax.broadcasted_iota(jnp.int32, (BLOCK, num_frames), 1) < lengths[pl.program_id(1)]
    scores = scale * (product(query[...], key[...], 1, 1) + by_offset)
    return jnp.where(valid, scores, NEVER), valid, window


def _by_offset(scores: Array) -> Array:
    """Moves row r of a block to the right by BLOCK - 1 - r."""
    return staggered(jnp.concatenate([scores, jnp.zeros((BLOCK, BLOCK), scores.dtype)], axis=1))


def _padded(query: Array, position_query: Array, key: Array, value: Array, offsets: Array) -> tuple[Array, ...]:
    """Arrays [B H N C] of N padded frames, and offsets [H 2N P]."""
    num_frames = whole_tiles(query.shape[1], BLOCK)
    before = num_frames - query.shape[1]
    by_head = jnp.pad(jnp.swapaxes(offsets, 0, 1), ((0, 0), (before, before + 1), (0, 0)))
    return *(_with_frames(each, num_frames) for each in (query, position_query, key, value)), by_head


def _specs(arrays: tuple[Array, ...]) -> list[Any]:
    query, position_query, key, value, offsets = arrays
    of_head = pl.BlockSpec((None, *offsets.shape[1:]), lambda h, b, i, _: (h, 0, 0))
    return [*map(_of_block, (query, position_query)), *map(_of_row, (key, value)), of_head]


def _of_block(x: Any) -> Any:
    return pl.BlockSpec((None, None, BLOCK, x.shape[3]), lambda h, b, i, _: (b, h, i, 0))


def _of_row(x: Any) -> Any:
    return pl.BlockSpec((None, None, *x.shape[2:]), lambda h, b, i, _: (b, h, 0, 0))


def _params(given: Any, order: Any) -> Any:
    """Parameters of a kernel whose programs of a head run in some order. It asks for more VMEM only if it needs it."""
    limit = VMEM_BYTES if vmem_bytes(*given) > DEFAULT_BYTES else None
    return pltpu.CompilerParams(dimension_semantics=("parallel", order, order), vmem_limit_bytes=limit)


def _per_query(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:3], 1), jnp.float32)


def _with_frames(x: Float[Array, "B T H C"], num_frames: int) -> Float[Array, "B H N C"]:
    return jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, num_frames - x.shape[1]), (0, 0)))


def _unpadded(x: Float[Array, "B H N C"], num_frames: int) -> Float[Array, "B T H C"]:
    return jnp.swapaxes(x[:, :, :num_frames], 1, 2)
