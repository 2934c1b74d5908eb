"""Gated linear unit for NVIDIA GPUs (Triton)."""

import math
from functools import partial
from typing import no_type_check

import jax
import triton
import triton.language as tl
from jaxtyping import Array, Float

from asr_jax.kernels.elementwise_triton import in_blocks, places
from asr_jax.kernels.gradients import of_inputs


def glu(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Computes `api.glu`. `axis` is -1 or -2."""
    return of_inputs(partial(_forward, axis), partial(_backward, axis))(x)


def _forward(axis: int, x: Array) -> Array:
    shape = list(x.shape)
    shape[axis] //= 2
    out = jax.ShapeDtypeStruct(tuple(shape), x.dtype)
    return in_blocks(x, kernel=_forward_kernel, like=out, rows=math.prod(shape[:axis]), size=math.prod(shape[axis:]))


def _backward(axis: int, x: Array, dy: Array) -> tuple[Array]:
    rows, size = math.prod(dy.shape[:axis]), math.prod(dy.shape[axis:])
    return (in_blocks(x, dy, kernel=_backward_kernel, like=x, rows=rows, size=size),)


@triton.jit
@no_type_check  # Triton's arguments have no types
def _loaded(x, row, place, size):
    """Values and gates of a row: its first `size` elements, and the others."""
    values = x + row * 2 * size + place
    value = tl.load(values, mask=place < size, other=0.0).to(tl.float32)
    return value, tl.sigmoid(tl.load(values + size, mask=place < size, other=0.0).to(tl.float32))


@triton.jit
@no_type_check
def _forward_kernel(x, size, y, BLOCK: tl.constexpr):
    row, place = places(size, BLOCK)
    value, gate = _loaded(x, row, place, size)
    tl.store(y + row * size + place, (value * gate).to(y.dtype.element_ty), mask=place < size)


@triton.jit
@no_type_check
def _backward_kernel(x, dy, size, dx, BLOCK: tl.constexpr):
    row, place = places(size, BLOCK)
    value, gate = _loaded(x, row, place, size)
    gradient = tl.load(dy + row * size + place, mask=place < size, other=0.0).to(tl.float32)
    values = dx + row * 2 * size + place
    tl.store(values, (gradient * gate).to(dx.dtype.element_ty), mask=place < size)
    of_gate = gradient * value * gate * (1.0 - gate)
    tl.store(values + size, of_gate.to(dx.dtype.element_ty), mask=place < size)
