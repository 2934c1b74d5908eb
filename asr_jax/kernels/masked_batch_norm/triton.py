"""Parts of batch norm for NVIDIA GPUs, with the signatures of `reference` (Triton).

Sums over programs would have another order in each call. Sums over frames are therefore sums, by XLA, of one partial
sum per program.
"""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.masked_batch_norm.reference import Sums
from asr_jax.kernels.triton_calls import triton_call
from asr_jax.kernels.triton_frames import CHANNELS, load_channels, load_frames, store_channels, store_frames

FRAMES = tl.constexpr(32)
"""Number of frames of a block; a power of 2."""
SPAN = tl.constexpr(256)
"""Number of frames of a program that computes sums; a multiple of `FRAMES`."""


def masked_sums(x: Array, lengths: Array, shift: Array | None) -> Sums:
    shift = jnp.zeros(x.shape[2], jnp.float32) if shift is None else shift
    return _summed(_masked_sums_kernel, x, lengths, shift)


def gradient_sums(x: Array, dy: Array, mean: Array, inverse: Array) -> Sums:
    return _summed(_gradient_sums_kernel, x, dy, mean, inverse)


def normalise(x: Array, mean: Array, scale: Array, bias: Array) -> Array:
    return _of_frames(_normalise_kernel, x, mean, scale, bias)


def input_gradient(
    x: Array, dy: Array, lengths: Array, mean: Array, inverse: Array, gain: Array, sums: Sums, num: Array
) -> Array:
    return _of_frames(_input_gradient_kernel, x, dy, lengths, mean, inverse, gain, *(each / num for each in sums))


def _summed(kernel: Any, x: Array, *given: Array) -> Sums:
    rows, frames, width = x.shape
    parts = triton.cdiv(frames, SPAN.value)
    partial = jax.ShapeDtypeStruct((rows * parts, width), jnp.float32)
    first, second = triton_call(
        x,
        *given,
        frames,
        width,
        kernel=kernel,
        out=(partial, partial),
        grid=(parts, triton.cdiv(width, CHANNELS.value), rows),
    )
    return first.sum(0), second.sum(0)


def _of_frames(kernel: Any, x: Array, *given: Array) -> Array:
    rows, frames, width = x.shape
    (found,) = triton_call(
        x,
        *given,
        frames,
        width,
        kernel=kernel,
        out=(jax.ShapeDtypeStruct(x.shape, x.dtype),),
        grid=(triton.cdiv(frames, FRAMES.value), triton.cdiv(width, CHANNELS.value), rows),
    )
    return found


@triton.jit
@no_type_check  # Triton's arguments have no types
def _store_sums(first, second, one, two, width):
    part = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    store_channels(first, tl.sum(one, 0), part, width)
    store_channels(second, tl.sum(two, 0), part, width)


@triton.jit
@no_type_check
def _masked_sums_kernel(x, lengths, shift, frames, width, sums, squares):
    """Computes the sums over the valid frames among SPAN frames of a row."""
    length, centre = tl.load(lengths + tl.program_id(2)), load_channels(shift, width)[None, :]
    total = tl.zeros([FRAMES, CHANNELS], tl.float32)
    total_squares = tl.zeros([FRAMES, CHANNELS], tl.float32)
    for first in range(0, SPAN, FRAMES):
        t = tl.program_id(0) * SPAN + first + tl.arange(0, FRAMES)
        values = load_frames(x, t, t < length, frames, width)
        deviation = tl.where((t < length)[:, None], values - centre, 0.0)
        total += deviation
        total_squares += deviation * deviation
    _store_sums(sums, squares, total, total_squares, width)


@triton.jit
@no_type_check
def _gradient_sums_kernel(x, dy, mean, inverse, frames, width, of_bias, of_gain):
    """Computes the sums over SPAN frames of a row."""
    centre, factor = load_channels(mean, width)[None, :], load_channels(inverse, width)[None, :]
    total = tl.zeros([FRAMES, CHANNELS], tl.float32)
    total_units = tl.zeros([FRAMES, CHANNELS], tl.float32)
    for first in range(0, SPAN, FRAMES):
        t = tl.program_id(0) * SPAN + first + tl.arange(0, FRAMES)
        unit = (load_frames(x, t, t < frames, frames, width) - centre) * factor
        of_y = load_frames(dy, t, t < frames, frames, width)
        total += of_y
        total_units += tl.where(of_y != 0, of_y * unit, 0.0)
    _store_sums(of_bias, of_gain, total, total_units, width)


@triton.jit
@no_type_check
def _normalise_kernel(x, mean, scale, bias, frames, width, y):
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    deviation = load_frames(x, t, t < frames, frames, width) - load_channels(mean, width)[None, :]
    factor, constant = load_channels(scale, width), load_channels(bias, width)
    store_frames(y, deviation * factor[None, :] + constant[None, :], t, frames, width)


@triton.jit
@no_type_check
def _input_gradient_kernel(x, dy, lengths, mean, inverse, gain, bias_mean, gain_mean, frames, width, dx):
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    factor, valid = load_channels(inverse, width), t < tl.load(lengths + tl.program_id(2))
    deviation = load_frames(x, t, valid, frames, width) - load_channels(mean, width)[None, :]
    of_gain = load_channels(gain_mean, width) * factor
    through = load_channels(bias_mean, width)[None, :] + deviation * of_gain[None, :]
    of_y = load_frames(dy, t, t < frames, frames, width) - tl.where(valid[:, None], through, 0.0)
    store_frames(dx, of_y * (load_channels(gain, width) * factor)[None, :], t, frames, width)
