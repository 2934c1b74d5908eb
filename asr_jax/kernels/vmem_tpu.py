"""Estimates of the VMEM that a program of a Pallas kernel for TPUs needs, so that a kernel is refused before it fails.

A kernel that needs too much fails in the compiler, after minutes and without a message that says what to change.
"""

import math
from collections.abc import Sequence
from typing import Any

VMEM_BYTES = 100 << 20
"""Memory that a kernel may use, of the 128 MiB of a v5e or a v6e."""
DEFAULT_BYTES = 16 << 20
"""Memory that the compiler gives to a kernel that does not ask for more."""
SUBLANES, LANES = 8, 128
"""Sizes of a tile of float32. A tile of bfloat16 has twice as many rows."""


def bytes_of(shape: Sequence[int], itemsize: int) -> int:
    """Returns the size of an array in whole tiles.

    Args:
        shape: Sizes of at least two axes.
        itemsize: Size of a value in bytes.
    """
    *outer, rows, columns = shape
    tile = SUBLANES * 4 // itemsize
    return math.prod(outer) * (-(-rows // tile) * tile) * (-(-columns // LANES) * LANES) * itemsize


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
