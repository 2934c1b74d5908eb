"""Depthwise convolution over time for NVIDIA GPUs: a sum of shifted products in registers (Triton).

Sums over programs would have another order in each call. The filters' gradient is therefore a sum, by XLA, of one
partial sum per block of frames.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float

from asr_jax.kernels.depthwise_conv.reference import Pair
from asr_jax.kernels.triton_calls import triton_call

FRAMES, CHANNELS = 64, 64
"""Frames and channels of a program; powers of 2."""


def conv(
    x: Float[Array, "B T D"], kernel: Float[Array, "K D"], *, padding: Pair, stride: int, dilation: int
) -> Float[Array, "B S D"]:
    """Computes `api.depthwise_conv`.

    Args:
        x: Input.
        kernel: Filters.
        padding: Left and right padding in frames.
        stride: Stride in frames.
        dilation: Dilation in frames.
    """
    num_frames = (x.shape[1] + sum(padding) - dilation * (len(kernel) - 1) - 1) // stride + 1
    return _correlated(x, kernel, num_frames, STEP=stride, FIRST=-padding[0], APART=dilation, DIVISOR=1)


def gradients(
    x: Float[Array, "B T D"], kernel: Float[Array, "K D"], dy: Float[Array, "B S D"],
    *, padding: Pair, stride: int, dilation: int,
) -> tuple[Float[Array, "B T D"], Float[Array, "K D"]]:  # fmt: skip
    """Computes the gradients of `conv` with respect to `x` and `kernel`.

    Args:
        x: Input of the convolution.
        kernel: Filters of the convolution.
        dy: Gradient with respect to the output.
        padding: Left and right padding in frames.
        stride: Stride in frames.
        dilation: Dilation in frames.
    """
    dx = _correlated(dy, kernel, x.shape[1], STEP=1, FIRST=padding[0], APART=-dilation, DIVISOR=stride)
    rows, num_frames, width = dy.shape
    parts = triton.cdiv(num_frames, FRAMES)
    (partial,) = triton_call(
        x, dy, x.shape[1], num_frames, width,
        kernel=_filter_kernel,
        out=(jax.ShapeDtypeStruct((rows, parts, *kernel.shape), jnp.float32),),
        grid=(parts, triton.cdiv(width, CHANNELS), rows),
        TAPS=len(kernel), STEP=stride, FIRST=-padding[0], APART=dilation, FRAMES=FRAMES, CHANNELS=CHANNELS,
    )  # fmt: skip
    return dx, jnp.sum(partial, (0, 1)).astype(kernel.dtype)


def _correlated(x: Array, kernel: Array, num_frames: int, **steps: int) -> Array:
    """Returns the sum over taps of filters and frames of `x` (see `_correlate_kernel`)."""
    rows, size, width = x.shape
    (found,) = triton_call(
        x, kernel, size, num_frames, width,
        kernel=_correlate_kernel,
        out=(jax.ShapeDtypeStruct((rows, num_frames, width), x.dtype),),
        grid=(triton.cdiv(num_frames, FRAMES), triton.cdiv(width, CHANNELS), rows),
        TAPS=len(kernel), FRAMES=FRAMES, CHANNELS=CHANNELS,
        **steps,
    )  # fmt: skip
    return found


@triton.jit
@no_type_check  # Triton's arguments have no types
def _frames(array, frame, valid, size, width, CHANNELS: tl.constexpr):
    """Frames of the program's row and channels in float32, and zeros outside of the row: [frames, CHANNELS]."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(2).to(tl.int64)
    place = (row * size + frame[:, None]) * width + channel[None, :]
    valid = valid & (frame >= 0) & (frame < size)
    return tl.load(array + place, mask=valid[:, None] & (channel < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _correlate_kernel(
    x, kernel, size, num_frames, width, y,
    TAPS: tl.constexpr, STEP: tl.constexpr, FIRST: tl.constexpr, APART: tl.constexpr, DIVISOR: tl.constexpr,
    FRAMES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Computes y[t] = Σ_k kernel[k] · x[(STEP·t + FIRST + APART·k) / DIVISOR] over whole quotients."""
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros([FRAMES, CHANNELS], tl.float32)
    for k in range(TAPS):
        weight = tl.load(kernel + k * width + channel, mask=channel < width, other=0.0).to(tl.float32)
        place = STEP * t + FIRST + APART * k
        is_whole = (place >= 0) & (place % DIVISOR == 0)
        total += weight[None, :] * _frames(x, place // DIVISOR, is_whole, size, width, CHANNELS)
    place = (tl.program_id(2).to(tl.int64) * num_frames + t[:, None]) * width + channel[None, :]
    valid = (t < num_frames)[:, None] & (channel < width)[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=valid)


@triton.jit
@no_type_check
def _filter_kernel(
    x, dy, size, num_frames, width, partial,
    TAPS: tl.constexpr, STEP: tl.constexpr, FIRST: tl.constexpr, APART: tl.constexpr,
    FRAMES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Computes the sums over a block of frames of dy[t] · x[STEP·t + FIRST + APART·k], for each tap k."""
    t = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    of_y = _frames(dy, t, t < num_frames, num_frames, width, CHANNELS)
    part = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    for k in range(TAPS):
        seen = _frames(x, STEP * t + FIRST + APART * k, t < num_frames, size, width, CHANNELS)
        tl.store(partial + (part * TAPS + k) * width + channel, tl.sum(of_y * seen, 0), mask=channel < width)
