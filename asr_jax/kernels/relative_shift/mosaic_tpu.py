"""Shift of attention scores from offsets to keys for TPUs (Pallas)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from asr_jax.kernels.elementwise_tpu import LANES, in_blocks, matrices
from asr_jax.kernels.gradients import of_inputs


def _forward(scores: Array) -> Array:
    *rest, queries, offsets = scores.shape
    return _moved(_forward_kernel, scores, (*rest, queries, offsets - queries + 1))


def _backward(scores: Array, dy: Array) -> tuple[Array]:
    return (_moved(_backward_kernel, dy, scores.shape),)


def _moved(kernel: Any, x: Array, shape: tuple[int, ...]) -> Array:
    given = matrices(x)
    like = jax.ShapeDtypeStruct((len(given), *shape[-2:]), x.dtype)
    kernel = partial(kernel, queries=shape[-2])
    return in_blocks(kernel, given, like=like, whole=1, name="relative_shift").reshape(shape)


relative_shift = of_inputs(_forward, _backward)


def _forward_kernel(x: Any, y: Any, *, queries: int) -> None:
    """Moves row r of a block, which has query t, to the left by queries - 1 - t."""
    wide = _padded(x[...], x.shape[1])
    width = wide.shape[1]
    first = pl.program_id(1) * x.shape[0]
    wide = pltpu.roll(wide, (width + first - (queries - 1)) % width, 1)
    y[...] = pltpu.roll(wide, 0, 1, stride=1, stride_axis=0)[:, : y.shape[1]].astype(y.dtype)


def _backward_kernel(dy: Any, dx: Any, *, queries: int) -> None:
    """Moves row r of a block, which has query t, to the right by queries - 1 - t."""
    wide = _padded(dy[...], dx.shape[1])
    width, rows = wide.shape[1], dx.shape[0]
    last = pl.program_id(1) * rows + rows - 1
    wide = pltpu.roll(wide, (2 * width + queries - 1 - last) % width, 1)
    dx[...] = staggered(wide)[:, : dx.shape[1]].astype(dx.dtype)


def _padded(x: Array, width: int) -> Array:
    """Appends zeros up to a number of whole tiles."""
    more = -(-width // LANES) * LANES - x.shape[1]
    return jnp.pad(x.astype(jnp.float32), ((0, 0), (0, more)))


def staggered(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """Moves row r to the right by M - 1 - r, in steps of powers of 2: strided rolls move lower rows further."""
    shift = len(x) - 1 - jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for bit in range((len(x) - 1).bit_length()):
        x = jnp.where((shift >> bit) & 1 == 1, pltpu.roll(x, 1 << bit, 1), x)
    return x
