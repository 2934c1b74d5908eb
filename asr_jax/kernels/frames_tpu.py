"""Pallas kernels for TPUs over blocks of frames [B T D], with vectors of channels, and sums over all frames."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

BLOCK = 1 << 17
"""Largest number of values of a block: three blocks, each twice, take 3 MB of VMEM."""


def by_frames(
    kernel: Any,
    lengths: Int[Array, " B"] | None,
    of_frames: tuple[Float[Array, "B T D"], ...],
    of_channels: tuple[Array, ...],
    outputs: list[Any],
    *,
    name: str,
) -> Any:
    """Calls a kernel for blocks of frames, one after the other, so that it can add to sums, and returns its outputs.

    Args:
        kernel: Function of lengths, of a block of each array of frames, of the vectors [1 D] and numbers [1 1] of
            `of_channels` in float32, and of the outputs.
        lengths: Number of valid frames of each row. None: all are valid.
        outputs: Descriptions of the outputs: frames, or sums [1 D] or [1 1].
    """
    rows, num_frames, width = of_frames[0].shape
    frames = min(max(BLOCK // width // 16 * 16, 16), num_frames)

    def spec(array: Any) -> Any:
        if array.ndim == 2:
            return pl.BlockSpec(array.shape, lambda b, t, _: (0, 0))
        return pl.BlockSpec((None, frames, width), lambda b, t, _: (b, t, 0))

    given = (*of_frames, *(each.astype(jnp.float32).reshape(1, -1) for each in of_channels))
    lengths = jnp.full(rows, num_frames) if lengths is None else lengths
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, pl.cdiv(num_frames, frames)),
            in_specs=list(map(spec, given)),
            out_specs=list(map(spec, outputs)),
        ),
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
        name=name,
    )(lengths.astype(jnp.int32), *given)


def sums_of(*sizes: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the descriptions of sums [1 N] in float32, for `by_frames`."""
    return [jax.ShapeDtypeStruct((1, size), jnp.float32) for size in sizes]


def valid_frames(lengths: Any, frames: int) -> Array:
    """Returns whether each frame of the program's block is valid: [frames, 1]."""
    t = pl.program_id(1) * frames + jax.lax.broadcasted_iota(jnp.int32, (frames, 1), 0)
    return t < lengths[pl.program_id(0)]


def add_frames(total: Any, values: Array) -> None:
    """Adds the sum over a block of frames to the sum over all frames."""

    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.sum(values, axis=0, keepdims=True)
