"""Weighted sums of groups of frames for NVIDIA GPUs: one program for each group (Triton)."""

from typing import Any, no_type_check

import jax
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.gradients import of_inputs
from asr_jax.kernels.triton_calls import triton_call

BLOCK = 1024
"""Largest number of channels that a program reads at a time; a power of 2."""


def _forward(x: Array, weights: Array) -> Array:
    out = jax.ShapeDtypeStruct((*weights.shape[:2], x.shape[2]), x.dtype)
    return _call(_forward_kernel, x, weights, out=(out,))[0]


def _backward(x: Array, weights: Array, dy: Array) -> tuple[Array, Array]:
    out = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (x, weights))
    of_x, of_weights = _call(_backward_kernel, x, weights, dy, out=out)
    return of_x, of_weights


weighted_sums = of_inputs(_forward, _backward)


def _call(kernel: Any, x: Array, weights: Array, *more: Array, out: Any) -> Any:
    (_, frames, channels), (rows, groups, size) = x.shape, weights.shape
    block = min(BLOCK, triton.next_power_of_2(channels))
    given = (x, weights, *more, frames, groups)
    return triton_call(*given, kernel=kernel, out=out, grid=(rows * groups,), CHANNELS=channels, SIZE=size, BLOCK=block)


@triton.jit
@no_type_check  # Triton's arguments have no types
def _place(frames, groups, SIZE: tl.constexpr):
    """Program, and the numbers of the first frame of its group in the batch and in its row."""
    program = tl.program_id(0).to(tl.int64)
    first = program % groups * SIZE
    return program, program // groups * frames + first, first


@triton.jit
@no_type_check
def _forward_kernel(x, weights, frames, groups, y, CHANNELS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    program, place, _ = _place(frames, groups, SIZE)
    for begin in range(0, CHANNELS, BLOCK):
        channel = begin + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for i in range(SIZE):
            weight = tl.load(weights + program * SIZE + i)
            there = channel < tl.where(weight > 0, CHANNELS, 0)
            total += weight * tl.load(x + (place + i) * CHANNELS + channel, mask=there, other=0.0).to(tl.float32)
        tl.store(y + program * CHANNELS + channel, total.to(y.dtype.element_ty), mask=channel < CHANNELS)


@triton.jit
@no_type_check
def _backward_kernel(
    x, weights, dy, frames, groups, dx, of_weights, CHANNELS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    program, place, first = _place(frames, groups, SIZE)
    for i in range(SIZE):
        weight = tl.load(weights + program * SIZE + i)
        valid = tl.where(weight > 0, CHANNELS, 0)
        stored = tl.where(first + i < frames, CHANNELS, 0)  # the last group may lack frames
        total = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, CHANNELS, BLOCK):
            channel = begin + tl.arange(0, BLOCK)
            frame = (place + i) * CHANNELS + channel
            gradient = tl.load(dy + program * CHANNELS + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
            total += gradient * tl.load(x + frame, mask=channel < valid, other=0.0).to(tl.float32)
            tl.store(dx + frame, (weight * gradient).to(dx.dtype.element_ty), mask=channel < stored)
        tl.store(of_weights + program * SIZE + i, tl.sum(total, 0))
