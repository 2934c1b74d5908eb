"""Depthwise convolution as a sum of shifted products, for CPUs: XLA fuses the taps into one vectorised loop.

On CPUs, XLA's grouped convolution takes 30 times as long. The automatic derivative of this implementation takes 10
times as long, because its kernel gradient is compiled to reductions over leading axes, which XLA's CPU compiler does
not vectorise.
"""

import operator
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.fft import next_fast_len

from asr_jax.core.shapes import DimSize
from asr_jax.kernels.depthwise_conv.reference import Padding, Pair, Window

Places = Sequence[tuple[Pair, Pair]]

# Maximum number of taps per loop: more do not fit into the processor's registers, and 31 taps take 1.7 times as long.
MOST_TAPS_FUSED = 16
# Minimum number of taps and of input values for which the kernel's gradient is computed by Fourier transforms, whose
# cost does not depend on the number of taps (measurements: BUILD_NOTES.md).
FEWEST_TAPS_BY_FFT, FEWEST_VALUES_BY_FFT = 16, 2**18
# Maximum number of unrolled rows: below 8, the cost of writing sums over rows to memory is noticeable.
MOST_ROWS_UNROLLED = 8


def conv(x: Array, kernel: Array, *, window: Window) -> Array:
    """Computes `reference.conv` in the dtype of `x`, with sums in float32."""
    strides, dilations = window.strides, window.dilations
    padded = _pad(x, window.padding)
    size = [
        (frames - dilation * (taps - 1) - 1) // stride + 1
        for frames, taps, stride, dilation in zip(padded.shape[1:3], kernel.shape, strides, dilations, strict=False)
    ]
    places = [((k, f), (k * dilations[0], f * dilations[1])) for k, f in np.ndindex(kernel.shape[:2])]
    return _sum_of_products(padded, kernel, places, size, strides)


def _sum_of_products(
    padded: Float[Array, "B P Q C"],
    kernel: Float[Array, "K L D"],
    places: Places,
    size: Sequence[DimSize],
    strides: Pair,
) -> Float[Array, "B S G D"]:
    """Returns the sum over `places` of the strided input from a tap's first frame and bin on, multiplied by the tap."""
    weights, num_rows, num_channels = kernel.astype(jnp.float32)[None, None], padded.shape[0], padded.shape[-1]

    # lax.slice, because tracing takes several times as long with indexing.
    def product(tap: Pair, first: Pair) -> Array:
        end = [begin + (number - 1) * stride + 1 for begin, number, stride in zip(first, size, strides, strict=True)]
        window = jax.lax.slice(padded, (0, *first, 0), (num_rows, *end, num_channels), (1, *strides, 1))
        weight = jax.lax.slice(weights, (0, 0, *tap, 0), (1, 1, tap[0] + 1, tap[1] + 1, kernel.shape[2]))
        return window.astype(jnp.float32) * weight.reshape(1, 1, 1, -1)

    products = [product(tap, first) for tap, first in places]
    total = reduce(operator.add, products[:MOST_TAPS_FUSED])
    for begin in range(MOST_TAPS_FUSED, len(products), MOST_TAPS_FUSED):
        part = reduce(operator.add, products[begin : begin + MOST_TAPS_FUSED])
        total = jax.lax.optimization_barrier(total) + part
    return jax.lax.optimization_barrier(total).astype(padded.dtype)  # otherwise XLA repeats the sum for each use


def gradients(x: Array, kernel: Array, dy: Array, *, window: Window) -> tuple[Array, Array]:
    """Computes `reference.gradients`."""
    padding, strides, dilations = window.padding, window.strides, window.dilations
    size, num_taps = (x.shape[1], x.shape[2]), (kernel.shape[0], kernel.shape[1])
    dx = _input_gradient(dy, kernel, size, window)
    dx = dx if x.shape[-1] == dx.shape[-1] else dx.sum(-1, keepdims=True)
    one_bin = size[1] == num_taps[1] == dy.shape[2] == 1 and padding[1] == (0, 0)
    if x.shape[-1] == 1:
        dk = _kernel_gradient_of_one_channel(x, dy, num_taps, window)
    elif one_bin and num_taps[0] >= FEWEST_TAPS_BY_FFT and x.size >= FEWEST_VALUES_BY_FFT:
        # A stride means stride - 1 zeros between the frames of dy; no filter reaches the input behind the last of them.
        spread = jax.lax.pad(dy[:, :, 0], jnp.zeros((), dy.dtype), ((0, 0, 0), (0, 0, strides[0] - 1), (0, 0, 0)))
        dk = _kernel_gradient_by_fft(x[:, :, 0], spread, num_taps[0], padding[0], dilations[0])[:, None]
    else:
        dk = _kernel_gradient(x, dy, num_taps, window)
    return dx, dk.astype(kernel.dtype)


def _input_gradient(
    dy: Float[Array, "B S G D"], kernel: Float[Array, "K L D"], size: Pair, window: Window
) -> Float[Array, "B T F D"]:
    """Computes the gradient with respect to the input.

    dx[b, u, v] = Σ_kl kernel[k, l] · dy[b, t, f] over all k, l, t, f with s_t·t = u + left_t - d_t·k and
    s_f·f = v + left_f - d_f·l.

    The frames of dx are computed in s_t phases (every s_t-th frame), each of which uses a subset of the taps. This
    avoids zeros between the frames of dy. The same applies to bins.
    """
    steps = list(zip(size, kernel.shape[:2], window.padding, window.strides, window.dilations, strict=True))
    # Per axis and phase: the taps in use, each with the position in dy for the phase's first frame.
    phases = [
        [
            [
                (k, (phase + left - dilation * k) // stride)
                for k in range(taps)
                if (phase + left - dilation * k) % stride == 0
            ]
            for phase in range(stride)
        ]
        for _, taps, (left, _), stride, dilation in steps
    ]
    num = [-(-frames // stride) for frames, _, _, stride, _ in steps]
    firsts = [[first for phase in axis for _, first in phase] for axis in phases]
    before = [max(-min(each), 0) for each in firsts]
    pads = [
        (low, max(max(each) + number - there, 0))
        for each, low, number, there in zip(firsts, before, num, dy.shape[1:3], strict=True)
    ]
    padded = _pad(dy, (pads[0], pads[1]))

    def of(rows: list[Pair], columns: list[Pair]) -> Float[Array, "B N M D"]:
        if not (rows and columns):
            return jnp.zeros((dy.shape[0], *num, dy.shape[3]), dy.dtype)
        places = [((k, f), (t + before[0], b + before[1])) for k, t in rows for f, b in columns]
        return _sum_of_products(padded, kernel, places, num, (1, 1))

    rows = [_interleave([of(row, column) for column in phases[1]], axis=2) for row in phases[0]]
    return _interleave(rows, axis=1)[:, : size[0], : size[1]]


def _interleave(parts: list[Array], *, axis: int) -> Array:
    """Interleaves parts: the first element of each part, then the second of each, and so on."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] *= len(parts)
    return jnp.stack(parts, axis=axis + 1).reshape(shape)


def _kernel_gradient_of_one_channel(
    x: Float[Array, "B T F 1"], dy: Float[Array, "B S G D"], num_taps: Pair, window: Window
) -> Float[Array, "K L D"]:
    """Computes `_kernel_gradient` for an input of one channel, as a matrix product of its windows with `dy`."""
    strides, dilations = window.strides, window.dilations
    padded, num_rows = _pad(x, window.padding).astype(jnp.float32), x.shape[0]
    seen = [(size - 1) * stride + 1 for size, stride in zip(dy.shape[1:3], strides, strict=True)]

    def seen_by(k: int, f: int) -> Array:
        first = (k * dilations[0], f * dilations[1])
        return jax.lax.slice(
            padded, (0, *first, 0), (num_rows, first[0] + seen[0], first[1] + seen[1], 1), (1, *strides, 1)
        )

    windows = jnp.concatenate([seen_by(k, f) for k, f in np.ndindex(num_taps)], axis=-1)
    windows, dy = windows.reshape(-1, windows.shape[-1]), dy.astype(jnp.float32).reshape(-1, dy.shape[-1])
    return jnp.matmul(windows.T, dy, precision=jax.lax.Precision.HIGHEST).reshape(*num_taps, -1)


def _kernel_gradient(
    x: Float[Array, "B T F D"], dy: Float[Array, "B S G D"], num_taps: Pair, window: Window
) -> Float[Array, "K L D"]:
    """Computes the gradient with respect to the kernel.

    dk[k, l] = Σ_btf padded[b, s_t·t + d_t·k, s_f·f + d_f·l] · dy[b, t, f]. The sum over rows is unrolled; the sum over
    frames is a product with ones. Taps are computed in a loop, which keeps their operands in the cache and is compiled
    once. Bins and channels share one axis, which makes the inner loop long.
    """
    strides, (num_rows, num_frames, num_bins, width) = window.strides, dy.shape
    num_groups = -(-num_rows // MOST_ROWS_UNROLLED)
    unrolled = -(-num_rows // num_groups)
    more_rows = unrolled * num_groups - num_rows
    padded = _pad(x, window.padding, more_rows=more_rows).astype(jnp.float32)
    padded = padded.reshape(unrolled, num_groups, padded.shape[1], -1)
    dys = _pad(dy, ((0, 0), (0, 0)), more_rows=more_rows).astype(jnp.float32)
    dys = dys.reshape(unrolled, num_groups, num_frames, num_bins * width)
    ones = jnp.ones((num_groups * num_frames,), jnp.float32)
    seen = [(size - 1) * stride + 1 for size, stride in zip((num_frames, num_bins), strides, strict=True)]

    def seen_by(rows: Float[Array, "N P E"], tap: Int[Array, " 2"]) -> Float[Array, "N S F"]:
        found = jax.lax.dynamic_slice(rows, (0, tap[0], tap[1] * width), (num_groups, seen[0], seen[1] * width))
        if strides == (1, 1):
            return found
        found = found.reshape(num_groups, *seen, width)[:, :: strides[0], :: strides[1]]
        return found.reshape(num_groups, num_frames, -1)

    def gradient(_: None, tap: Int[Array, " 2"]) -> tuple[None, Float[Array, " D"]]:
        over_rows = reduce(operator.add, [seen_by(rows, tap) * dy for rows, dy in zip(padded, dys, strict=True)])
        over_frames = jnp.matmul(ones, over_rows.reshape(len(ones), -1), precision=jax.lax.Precision.HIGHEST)
        return None, over_frames.reshape(num_bins, width).sum(0)

    taps = jnp.asarray(list(np.ndindex(num_taps)), jnp.int32) * jnp.asarray(window.dilations, jnp.int32)[None]
    return jax.lax.scan(gradient, None, taps)[1].reshape(*num_taps, width)


def _kernel_gradient_by_fft(
    x: Float[Array, "B T D"], dy: Float[Array, "B S D"], num_taps: int, padding: Pair, dilation: int
) -> Float[Array, "K D"]:
    """Computes `_kernel_gradient` over time as a correlation: a product of spectra.

    With a stride, `dy` has zeros between its frames.
    """
    num_frames = x.shape[1] + sum(padding)
    size = next_fast_len(num_frames, real=True)  # positions that wrap around are not read: S plus the taps fit
    after = (size - x.shape[1] - padding[0], size - dy.shape[1])
    spectra = [
        jnp.fft.rfft(
            jax.lax.pad(each.astype(jnp.float32), jnp.float32(0), ((0, 0, 0), (first, last, 0), (0, 0, 0))), axis=1
        )
        for each, first, last in zip((x, dy), (padding[0], 0), after, strict=True)
    ]
    over_rows = jnp.sum(spectra[0] * jnp.conj(spectra[1]), axis=0)
    return jnp.fft.irfft(over_rows, n=size, axis=0)[: (num_taps - 1) * dilation + 1 : dilation]


def _pad(x: Float[Array, "B T F C"], padding: Padding, *, more_rows: int = 0) -> Float[Array, "M P Q C"]:
    """Pads rows, time and frequency; negative padding crops.

    The barrier prevents XLA from computing `x` for each tap again.
    """
    widths = ((0, more_rows, 0), *((left, right, 0) for left, right in padding), (0, 0, 0))
    return jax.lax.optimization_barrier(jax.lax.pad(x, jnp.zeros((), x.dtype), widths))
