"""Bias norm for NVIDIA GPUs: each program reads whole rows once, for values and for gradients (Triton).

Sums over programs would have another order in each call. The gradients of the parameters are therefore sums, by XLA, of
one partial sum per program.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.bias_norm import reference
from asr_jax.kernels.gradients import of_inputs
from asr_jax.kernels.triton_calls import triton_call

TINY = tl.constexpr(reference.TINY)
BLOCK = 2048
"""Values in the registers of a program; a power of 2."""
LOOPS = tl.constexpr(8)
"""Number of blocks of a program that computes gradients."""


def _forward(x: Array, bias: Array, log_scale: Array) -> Array:
    (rows, width), sizes = x.shape, _sizes(x)
    return triton_call(
        x,
        bias,
        log_scale,
        rows,
        width,
        kernel=_forward_kernel,
        out=(jax.ShapeDtypeStruct(x.shape, x.dtype),),
        grid=(triton.cdiv(rows, sizes["ROWS"]),),
        **sizes,
    )[0]


def _backward(x: Array, bias: Array, log_scale: Array, dy: Array) -> tuple[Array, Array, Array]:
    (rows, width), sizes = x.shape, _sizes(x)
    programs = triton.cdiv(rows, sizes["ROWS"] * LOOPS.value)
    dx, of_bias, of_scale = triton_call(
        x,
        bias,
        log_scale,
        dy,
        rows,
        width,
        kernel=_backward_kernel,
        out=(
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((programs, width), jnp.float32),
            jax.ShapeDtypeStruct((programs,), jnp.float32),
        ),
        grid=(programs,),
        **sizes,
    )
    return dx, of_bias.sum(0).astype(bias.dtype), of_scale.sum().astype(log_scale.dtype)


bias_norm = of_inputs(_forward, _backward)


def _sizes(x: Array) -> dict[str, int]:
    width = triton.next_power_of_2(x.shape[1])
    return {"WIDTH": width, "ROWS": max(BLOCK // width, 1)}


@triton.jit
@no_type_check  # Triton's arguments have no types
def _load(array, row, rows, width, WIDTH: tl.constexpr):
    """Rows of a matrix in float32."""
    column = tl.arange(0, WIDTH)
    valid = (row < rows)[:, None] & (column < width)[None, :]
    return tl.load(array + row.to(tl.int64)[:, None] * width + column[None, :], mask=valid, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _store(array, values, row, rows, width, WIDTH: tl.constexpr):
    """Stores rows of a matrix."""
    column = tl.arange(0, WIDTH)
    valid = (row < rows)[:, None] & (column < width)[None, :]
    place = array + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(place, values.to(array.dtype.element_ty), mask=valid)


@triton.jit
@no_type_check
def _deviation(x, bias, width, WIDTH: tl.constexpr):
    """Deviation of rows from the bias, and the inverse of its root mean square."""
    column = tl.arange(0, WIDTH)
    deviation = x - tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    return deviation, 1.0 / tl.sqrt(tl.sum(deviation * deviation, 1) / width + TINY)


@triton.jit
@no_type_check
def _forward_kernel(x, bias, log_scale, rows, width, y, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    values = _load(x, row, rows, width, WIDTH)
    _, inverse = _deviation(values, bias, width, WIDTH)
    factor = inverse * tl.exp(tl.load(log_scale).to(tl.float32))
    _store(y, values * factor[:, None], row, rows, width, WIDTH)


@triton.jit
@no_type_check
def _backward_kernel(
    x,
    bias,
    log_scale,
    dy,
    rows,
    width,
    dx,
    of_bias,
    of_scale,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Computes the gradients of some rows, and their sums over these rows for the parameters."""
    column = tl.arange(0, WIDTH)
    scale = tl.exp(tl.load(log_scale).to(tl.float32))
    bias_sum = tl.zeros([WIDTH], tl.float32)
    scale_sum = tl.zeros([ROWS], tl.float32)
    for number in range(LOOPS):
        row = (tl.program_id(0) * LOOPS + number) * ROWS + tl.arange(0, ROWS)
        values, of_y = _load(x, row, rows, width, WIDTH), _load(dy, row, rows, width, WIDTH)
        deviation, inverse = _deviation(values, bias, width, WIDTH)
        factor = inverse * scale
        of_scales = factor * tl.sum(of_y * values, 1)
        through = (of_scales * inverse * inverse / width)[:, None] * deviation
        _store(dx, of_y * factor[:, None] - through, row, rows, width, WIDTH)
        bias_sum += tl.sum(through, 0)
        scale_sum += of_scales
    tl.store(of_bias + tl.program_id(0) * width + column, bias_sum, mask=column < width)
    tl.store(of_scale + tl.program_id(0), tl.sum(scale_sum, 0))
