"""Tiles of arrays on TPUs, products of matrices in Pallas kernels, and estimates of the VMEM that a kernel needs.

A kernel that needs too much VMEM fails in the compiler, after minutes and without a message that says what to change.
The estimates refuse it before.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

VMEM_BYTES = 100 << 20
"""Memory that a kernel may use, of the 128 MiB of a v5e or a v6e."""
DEFAULT_BYTES = 16 << 20
"""Memory that the compiler gives to a kernel that does not ask for more."""
ROWS, LANES = 8, 128
"""Sizes of a tile of float32. A tile of bfloat16 has twice as many rows."""


def whole_tiles(size: int, tile: int) -> int:
    """Returns the smallest multiple of the size of a tile that is at least `size`."""
    return -(-size // tile) * tile


def product(a: Array, b: Array, axis: int, other: int) -> Array:
    """Multiplies matrices over an axis of each, in float32.

    Args:
        b: Matrix in the dtype of `a`.
        axis: Axis of `a`.
        other: Axis of `b`.
    """
    numbers = (((axis,), (other,)), ((), ()))
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def bytes_of(shape: Sequence[int], itemsize: int) -> int:
    """Returns the size of an array in whole tiles.

    Args:
        shape: Sizes of at least two axes.
        itemsize: Size of a value in bytes.
    """
    *outer, rows, columns = shape
    return math.prod(outer) * whole_tiles(rows, ROWS * 4 // itemsize) * whole_tiles(columns, LANES) * itemsize


def bytes_of_blocks(specs: Sequence[Any], arrays: Sequence[Any]) -> int:
    """Returns the size of the blocks of a program, each twice unless its specification says otherwise.

    Args:
        arrays: Arrays, or descriptions of them.
    """
    total = 0
    for spec, array in zip(specs, arrays, strict=True):
        shape = [size for size in spec.block_shape if size is not None]
        total += (spec.pipeline_mode.buffer_count if spec.pipeline_mode else 2) * bytes_of(shape, array.dtype.itemsize)
    return total


def too_large(num_bytes: int, what: str) -> str:
    """Returns a message if a program does not fit into VMEM, otherwise an empty text.

    Args:
        num_bytes: Estimate of what it needs.
        what: Sizes that the need is for.
    """
    if num_bytes <= VMEM_BYTES:
        return ""
    return f"{what} need {num_bytes / (1 << 20):.0f} MiB of VMEM: expected at most {VMEM_BYTES >> 20}"
