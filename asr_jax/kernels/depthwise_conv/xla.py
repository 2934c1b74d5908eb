"""Depthwise convolution as shifted multiply-adds, for CPUs: XLA fuses the taps into one vectorised loop.

XLA's grouped convolution takes 30 times as long there, and the plain derivative of this form 10 times, because its
kernel gradient becomes reductions over leading axes, which XLA's CPU compiler does not vectorise.
"""

import operator
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.fft import next_fast_len

from asr_jax.kernels.depthwise_conv.reference import Padding, Pair

# In one loop with more taps, the processor's registers do not hold them: 31 taps take 1.7 times as long.
MOST_TAPS_FUSED = 16
# From here on the kernel's gradient is faster by way of a Fourier transform, which costs the same for any number of
# taps (figures: BUILD_NOTES.md).
FEWEST_TAPS_BY_FFT, FEWEST_VALUES_BY_FFT = 16, 2**18
# Below 8 the sums over rows that are written to memory begin to cost.
MOST_ROWS_UNROLLED = 8


def shifted(
    x: Float[Array, "B T F C"],
    kernel: Float[Array, "K L D"],
    *,
    padding: Padding,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
) -> Float[Array, "B S G D"]:
    """The value of `depthwise_conv_lax`, in the type of `x`, summed in float32."""
    padded = _pad(x, padding)
    weights = kernel.astype(jnp.float32)[None, None]
    num_rows, num_channels = padded.shape[0], padded.shape[-1]
    seen = [
        (frames - dilation * (taps - 1) - 1) // stride * stride + 1
        for frames, taps, stride, dilation in zip(padded.shape[1:3], kernel.shape, strides, dilations, strict=False)
    ]

    # `lax.slice`, because indexing takes several times as long to trace.
    def product(k: int, f: int) -> Array:
        first = (k * dilations[0], f * dilations[1])
        end = (num_rows, first[0] + seen[0], first[1] + seen[1], num_channels)
        window = jax.lax.slice(padded, (0, *first, 0), end, (1, *strides, 1))
        tap = jax.lax.slice(weights, (0, 0, k, f, 0), (1, 1, k + 1, f + 1, kernel.shape[2]))
        return window.astype(jnp.float32) * tap.reshape(1, 1, 1, -1)

    products = [product(k, f) for k, f in np.ndindex(kernel.shape[:2])]
    total = reduce(operator.add, products[:MOST_TAPS_FUSED])
    for begin in range(MOST_TAPS_FUSED, len(products), MOST_TAPS_FUSED):
        part = reduce(operator.add, products[begin : begin + MOST_TAPS_FUSED])
        total = jax.lax.optimization_barrier(total) + part
    return total.astype(x.dtype)


def shifted_gradients(
    x: Float[Array, "B T F C"],
    kernel: Float[Array, "K L D"],
    dy: Float[Array, "B S G D"],
    *,
    padding: Padding,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
) -> tuple[Float[Array, "B T F C"], Float[Array, "K L D"]]:
    """Gradients with respect to `x` and `kernel`, from that of the output."""
    reaches = [(taps - 1) * dilation for taps, dilation in zip(kernel.shape, dilations, strict=False)]
    # Between the frames that a stride takes lie zeros, and behind them those that no filter reaches.
    spread = jax.lax.pad(dy, jnp.zeros((), dy.dtype), ((0, 0, 0), *((0, 0, s - 1) for s in strides), (0, 0, 0)))
    back = [
        (reach - left, size + left - spread_size)
        for reach, size, (left, _), spread_size in zip(reaches, x.shape[1:3], padding, spread.shape[1:3], strict=True)
    ]
    dx = shifted(spread, kernel[::-1, ::-1], padding=(back[0], back[1]), dilations=dilations)
    dx = dx if x.shape[-1] == dx.shape[-1] else dx.sum(-1, keepdims=True)
    x = jnp.broadcast_to(x, (*x.shape[:-1], kernel.shape[-1]))
    one_bin = x.shape[2] == kernel.shape[1] == 1
    if one_bin and kernel.shape[0] >= FEWEST_TAPS_BY_FFT and x.size >= FEWEST_VALUES_BY_FFT:
        dk = _kernel_gradient_by_fft(x[:, :, 0], spread[:, :, 0], kernel.shape[0], padding[0], dilations[0])[:, None]
    else:
        dk = _kernel_gradient(x, dy, kernel.shape[:2], padding, strides, dilations)
    return dx, dk.astype(kernel.dtype)


def _kernel_gradient(
    x: Float[Array, "B T F D"],
    dy: Float[Array, "B S G D"],
    num_taps: tuple[int, ...],
    padding: Padding,
    strides: Pair,
    dilations: Pair,
) -> Float[Array, "K L D"]:
    """dk[k, l] = Σ_btf padded[b, s_t·t + d_t·k, s_f·f + d_f·l] · dy[b, t, f]: over rows, unrolled; over frames, by a
    product with ones.

    A loop over taps, because one after the other they find their operands in the cache, and compile but once. Bins and
    channels lie in one axis, so that the inner loop is long.
    """
    num_rows, num_frames, num_bins, width = dy.shape
    num_groups = -(-num_rows // MOST_ROWS_UNROLLED)
    unrolled = -(-num_rows // num_groups)
    more_rows = unrolled * num_groups - num_rows
    padded = _pad(x, padding, more_rows=more_rows).astype(jnp.float32)
    padded = padded.reshape(unrolled, num_groups, padded.shape[1], -1)
    dys = _pad(dy, ((0, 0), (0, 0)), more_rows=more_rows).astype(jnp.float32)
    dys = dys.reshape(unrolled, num_groups, num_frames, num_bins * width)
    ones = jnp.ones((num_groups * num_frames,), jnp.float32)
    seen = [(size - 1) * stride + 1 for size, stride in zip((num_frames, num_bins), strides, strict=True)]

    def window(rows: Float[Array, "N P E"], tap: Int[Array, " 2"]) -> Float[Array, "N S F"]:
        found = jax.lax.dynamic_slice(rows, (0, tap[0], tap[1] * width), (num_groups, seen[0], seen[1] * width))
        if strides == (1, 1):
            return found
        found = found.reshape(num_groups, *seen, width)[:, :: strides[0], :: strides[1]]
        return found.reshape(num_groups, num_frames, -1)

    def gradient(_: None, tap: Int[Array, " 2"]) -> tuple[None, Float[Array, " D"]]:
        over_rows = reduce(operator.add, [window(rows, tap) * dy for rows, dy in zip(padded, dys, strict=True)])
        over_frames = jnp.matmul(ones, over_rows.reshape(len(ones), -1), precision=jax.lax.Precision.HIGHEST)
        return None, over_frames.reshape(num_bins, width).sum(0)

    taps = jnp.asarray(list(np.ndindex(num_taps)), jnp.int32) * jnp.asarray(dilations, jnp.int32)[None]
    return jax.lax.scan(gradient, None, taps)[1].reshape(*num_taps, width)


def _kernel_gradient_by_fft(
    x: Float[Array, "B T D"], dy: Float[Array, "B S D"], num_taps: int, padding: Pair, dilation: int
) -> Float[Array, "K D"]:
    """As `_kernel_gradient` over time alone, from gradients with zeros between the frames that a stride takes: a
    correlation, as a product of spectra."""
    num_frames = x.shape[1] + sum(padding)
    size = next_fast_len(num_frames, real=True)  # none that wraps around is read: S and the taps fit together
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
    """Negative padding crops. The barrier keeps XLA from computing `x` anew for every tap."""
    widths = ((0, more_rows, 0), *((left, right, 0) for left, right in padding), (0, 0, 0))
    return jax.lax.optimization_barrier(jax.lax.pad(x, jnp.zeros((), x.dtype), widths))
