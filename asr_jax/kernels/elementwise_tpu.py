"""Pallas kernels for TPUs over blocks of arrays [A M N], and functions that are computed for each element."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from asr_jax.kernels.elementwise import Elementwise
from asr_jax.kernels.gradients import of_inputs

ELEMENTS = 1 << 17
"""Approximate number of elements of a block. Three arrays of float32, each twice, take 3 MB of VMEM."""
ROWS, LANES = 32, 128
"""Divisors of the sizes of a block: the sizes of a tile of int8, which is a whole number of tiles of other dtypes."""
MOST_LANES = 2048


def in_blocks(
    kernel: Callable[..., None],
    *inputs: Float[Array, "A _ _"],
    like: Any,
    lengths: Int[Array, " A"] | None = None,
    whole: int | None = None,
    name: str,
) -> Array:
    """Calls a kernel for each block of matrices and returns its output [A M N].

    Args:
        kernel: Function of `lengths`, if there are any, of a block of each input, and of a block of the output.
            Program (a, i, j) computes block (i, j) of matrix a.
        inputs: Arrays of A matrices. They and the output have the same size along each axis that is cut into blocks.
        like: Array, or description of one, with the shape and dtype of the output.
        lengths: Number of valid frames of each matrix.
        whole: Axis of the matrices that blocks contain wholly: rows (0) or columns (1).
    """
    scalars = () if lengths is None else (lengths.astype(jnp.int32),)
    output = jax.ShapeDtypeStruct(like.shape, like.dtype)
    if math.prod(output.shape) == 0:
        return jnp.zeros(output.shape, output.dtype)
    shapes: list[tuple[int, ...]] = [*(each.shape for each in inputs), output.shape]
    _, *largest = max(shapes, key=math.prod)
    sizes = _block(largest[0], largest[1], whole)

    def spec(array: Any) -> pl.BlockSpec:
        block = [array.shape[1 + axis] if axis == whole else sizes[axis] for axis in (0, 1)]
        return pl.BlockSpec((None, *block), lambda a, i, j, *_: (a, i, j))

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(output.shape[0], *(pl.cdiv(*each) for each in zip(largest, sizes, strict=True))),
            in_specs=[spec(each) for each in inputs],
            out_specs=spec(output),
        ),
        out_shape=output,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel")),
        name=name,
    )(*scalars, *inputs)


def _block(num_rows: int, num_columns: int, whole: int | None) -> tuple[int, int]:
    """Sizes of a block: the whole axis, or a multiple of the size of a tile."""
    if whole == 0:
        return num_rows, min(num_columns, max(ELEMENTS // num_rows // LANES * LANES, LANES))
    columns = num_columns if whole == 1 else min(num_columns, MOST_LANES)
    return min(num_rows, max(ELEMENTS // columns // ROWS * ROWS, ROWS)), columns


def index(shape: tuple[int, ...], axis: int) -> Int[Array, "_ _"]:
    """Index along an axis of the matrix, for each element of a program's block.

    Args:
        shape: Sizes of the block.
        axis: Rows (0) or columns (1).
    """
    return pl.program_id(1 + axis) * shape[axis] + jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def elementwise(value: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Elementwise:
    """Returns a function as `kernels.elementwise.elementwise` does.

    Args:
        value: The function in float32.
    """

    def forward(x: Array) -> Array:
        given = matrices(x)
        return in_blocks(value_kernel, given, like=given, name="values").reshape(x.shape)

    def value_kernel(x: Any, y: Any) -> None:
        y[...] = value(x[...].astype(jnp.float32)).astype(y.dtype)

    def backward(x: Array, dy: Array) -> tuple[Array]:
        given = matrices(x), matrices(dy)
        return (in_blocks(slope_kernel, *given, like=given[0], name="slopes").reshape(x.shape),)

    def slope_kernel(x: Any, dy: Any, dx: Any) -> None:
        dx[...] = (dy[...].astype(jnp.float32) * slope(x[...].astype(jnp.float32))).astype(dx.dtype)

    return of_inputs(forward, backward)


def matrices(x: Float[Array, "..."]) -> Float[Array, "A M N"]:
    """Array of three axes; the last two keep their sizes, because another layout would have to be copied."""
    shape = (1, 1, *x.shape)[-max(x.ndim, 2) :]
    return x.reshape(math.prod(shape[:-2]), *shape[-2:])
