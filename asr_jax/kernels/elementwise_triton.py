"""Triton kernels whose programs compute a block of elements each, and functions that are computed for each element."""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.elementwise import Elementwise
from asr_jax.kernels.gradients import of_inputs
from asr_jax.kernels.triton_calls import triton_call

BLOCK = 1024
"""Largest number of elements of a program; a power of 2."""


def in_blocks(*arguments: Any, kernel: Any, like: Any, rows: int, size: int, **constants: Any) -> Array:
    """Calls a kernel whose programs compute a block of a row each, see `places`, and returns its output.

    Args:
        arguments: First arguments of the kernel. `size` and the output follow them.
        kernel: Function decorated with `triton.jit`.
        like: Array, or description of one, with the shape and dtype of the output.
        size: Number of elements of a row.
        constants: Constants of the kernel beside BLOCK.
    """
    if rows * size == 0:
        return jnp.zeros(like.shape, like.dtype)
    block = min(BLOCK, triton.next_power_of_2(size))
    out = (jax.ShapeDtypeStruct(like.shape, like.dtype),)
    grid = (rows * triton.cdiv(size, block),)
    return triton_call(*arguments, size, kernel=kernel, out=out, grid=grid, BLOCK=block, **constants)[0]


@triton.jit
@no_type_check  # Triton's arguments have no types
def places(size, BLOCK: tl.constexpr):
    """Row of a program, and the elements of its block within the row."""
    blocks = tl.cdiv(size, BLOCK)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)  # the number of elements before a row may exceed int32
    return row, (program % blocks) * BLOCK + tl.arange(0, BLOCK)


def elementwise(value: Any, slope: Any, *constants: float) -> Elementwise:
    """Returns a function as `kernels.elementwise.elementwise` does.

    Args:
        value: The function in float32, of a block and of a tuple of constants; decorated with `triton.jit`.
        slope: Its derivative, of the same arguments.
    """

    def forward(x: Array) -> Array:
        return in_blocks(x, kernel=_forward_kernel, like=x, rows=1, size=x.size, FUNCTION=value, CONSTANTS=constants)

    def backward(x: Array, dy: Array) -> tuple[Array]:
        return (
            in_blocks(x, dy, kernel=_backward_kernel, like=x, rows=1, size=x.size, FUNCTION=slope, CONSTANTS=constants),
        )

    return of_inputs(forward, backward)


@triton.jit
@no_type_check
def _forward_kernel(x, size, y, FUNCTION: tl.constexpr, CONSTANTS: tl.constexpr, BLOCK: tl.constexpr):
    """Computes a block of the values."""
    _, place = places(size, BLOCK)
    valid = place < size
    found = FUNCTION(tl.load(x + place, mask=valid, other=0.0).to(tl.float32), CONSTANTS)
    tl.store(y + place, found.to(y.dtype.element_ty), mask=valid)


@triton.jit
@no_type_check
def _backward_kernel(x, dy, size, dx, FUNCTION: tl.constexpr, CONSTANTS: tl.constexpr, BLOCK: tl.constexpr):
    """Computes a block of the gradient."""
    _, place = places(size, BLOCK)
    valid = place < size
    slope = FUNCTION(tl.load(x + place, mask=valid, other=0.0).to(tl.float32), CONSTANTS)
    found = tl.load(dy + place, mask=valid, other=0.0).to(tl.float32) * slope
    tl.store(dx + place, found.to(dx.dtype.element_ty), mask=valid)
