"""Depthwise convolution over time for NVIDIA GPUs: a sum of shifted products in registers (Triton).

Sums over programs would have another order in each call. The filters' gradient is therefore a sum, by XLA, of one
partial sum per block of frames.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.depthwise_conv.reference import Window
from asr_jax.kernels.triton_calls import triton_call
from asr_jax.kernels.triton_frames import CHANNELS, load_channels, load_frames, store_channels, store_frames

FRAMES = tl.constexpr(64)
"""Number of frames of a program; a power of 2."""


def conv(x: Array, kernel: Array, *, window: Window) -> Array:
    """Computes `reference.conv` over time."""
    padding, stride, dilation = window.padding[0], window.strides[0], window.dilations[0]
    num_frames = (x.shape[1] + sum(padding) - dilation * (len(kernel) - 1) - 1) // stride + 1
    steps = {"STEP": stride, "FIRST": -padding[0], "APART": dilation, "DIVISOR": 1}
    return _correlated(x[:, :, 0], kernel[:, 0], num_frames, **steps)[:, :, None]


def gradients(x: Array, kernel: Array, dy: Array, *, window: Window) -> tuple[Array, Array]:
    """Computes `reference.gradients` over time."""
    padding, stride, dilation = window.padding[0], window.strides[0], window.dilations[0]
    x, kernel, dy = x[:, :, 0], kernel[:, 0], dy[:, :, 0]
    dx = _correlated(dy, kernel, x.shape[1], STEP=1, FIRST=padding[0], APART=-dilation, DIVISOR=stride)
    rows, num_frames, width = dy.shape
    parts = triton.cdiv(num_frames, FRAMES.value)
    (partial,) = triton_call(
        x,
        dy,
        x.shape[1],
        num_frames,
        width,
        kernel=_filter_kernel,
        out=(jax.ShapeDtypeStruct((rows, parts, *kernel.shape), jnp.float32),),
        grid=(parts, triton.cdiv(width, CHANNELS.value), rows),
        TAPS=len(kernel),
        STEP=stride,
        FIRST=-padding[0],
        APART=dilation,
    )
    return dx[:, :, None], jnp.sum(partial, (0, 1)).astype(kernel.dtype)[:, None]


def _correlated(x: Array, kernel: Array, num_frames: int, **steps: int) -> Array:
    """Returns the sum over taps of filters and frames of `x` (see `_correlate_kernel`)."""
    rows, size, width = x.shape
    (found,) = triton_call(
        x,
        kernel,
        size,
        num_frames,
        width,
        kernel=_correlate_kernel,
        out=(jax.ShapeDtypeStruct((rows, num_frames, width), x.dtype),),
        grid=(triton.cdiv(num_frames, FRAMES.value), triton.cdiv(width, CHANNELS.value), rows),
        TAPS=len(kernel),
        **steps,
    )
    return found


@triton.jit
@no_type_check  # Triton's arguments have no types
def _correlate_kernel(
    x,
    kernel,
    size,
    num_frames,
    width,
    y,
    TAPS: tl.constexpr,
    STEP: tl.constexpr,
    FIRST: tl.constexpr,
    APART: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Computes y[t] = Σ_k kernel[k] · x[(STEP·t + FIRST + APART·k) / DIVISOR] over whole quotients."""
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    total = tl.zeros([FRAMES, CHANNELS], tl.float32)
    for k in range(TAPS):
        place = STEP * t + FIRST + APART * k
        is_whole = (place >= 0) & (place % DIVISOR == 0)
        seen = load_frames(x, place // DIVISOR, is_whole, size, width)
        total += load_channels(kernel + k * width, width)[None, :] * seen
    store_frames(y, total, t, num_frames, width)


@triton.jit
@no_type_check
def _filter_kernel(
    x,
    dy,
    size,
    num_frames,
    width,
    partial,
    TAPS: tl.constexpr,
    STEP: tl.constexpr,
    FIRST: tl.constexpr,
    APART: tl.constexpr,
):
    """Computes the sums over a block of frames of dy[t] · x[STEP·t + FIRST + APART·k], for each tap k."""
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    of_y = load_frames(dy, t, t < num_frames, num_frames, width)
    part = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    for k in range(TAPS):
        seen = load_frames(x, STEP * t + FIRST + APART * k, t < num_frames, size, width)
        store_channels(partial, tl.sum(of_y * seen, 0), part * TAPS + k, width)
