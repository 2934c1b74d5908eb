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

from asr_jax.kernels.depthwise_conv.reference import Padding

# Below 8 the sums over rows that are written to memory begin to cost.
MOST_ROWS_UNROLLED = 8


def shifted(
    x: Float[Array, "B *spatial D"], kernel: Float[Array, "*taps D"], *, padding: Padding
) -> Float[Array, "B *out D"]:
    """The value of `depthwise_conv_lax`, in the type of `x`, summed in float32."""
    padded = _pad(x, padding)
    weights = kernel.astype(jnp.float32).reshape(*kernel.shape[:-1], *(1,) * (x.ndim - 1), -1)
    sizes = [size - taps + 1 for size, taps in zip(padded.shape[1:-1], kernel.shape[:-1], strict=True)]
    total = jnp.float32(0)
    for tap in np.ndindex(kernel.shape[:-1]):
        total += padded[_window(tap, sizes)].astype(jnp.float32) * weights[tap]
    return total.astype(x.dtype)


def shifted_gradients(
    x: Float[Array, "B *spatial D"], kernel: Float[Array, "*taps D"], dy: Float[Array, "B *out D"], *, padding: Padding
) -> tuple[Float[Array, "B *spatial D"], Float[Array, "*taps D"]]:
    """Gradients with respect to `x` and `kernel`, from that of the output."""
    pairs = zip(kernel.shape, padding, strict=False)
    mirrored = tuple((taps - 1 - left, taps - 1 - right) for taps, (left, right) in pairs)
    dx = shifted(dy, jnp.flip(kernel, range(kernel.ndim - 1)), padding=mirrored)
    return dx, _kernel_gradient(x, dy, kernel.shape, padding).astype(kernel.dtype)


def _kernel_gradient(
    x: Float[Array, "B *spatial D"], dy: Float[Array, "B *out D"], shape: tuple[int, ...], padding: Padding
) -> Float[Array, "*taps D"]:
    """dk[k] = Σ_bt padded[b, t + k] · dy[b, t]: first over rows, unrolled; then over frames, as a product with ones.

    A loop over taps, because one after the other they find their operands in the cache, and compile but once.
    """
    num_groups = -(-len(x) // MOST_ROWS_UNROLLED)
    unrolled = -(-len(x) // num_groups)
    more_rows = unrolled * num_groups - len(x)
    padded = _pad(x, padding, more_rows=more_rows).astype(jnp.float32)
    padded = padded.reshape(unrolled, num_groups, *padded.shape[1:])
    dys = _pad(dy, ((0, 0),) * len(padding), more_rows=more_rows).astype(jnp.float32)
    dys = dys.reshape(unrolled, num_groups, *dy.shape[1:])
    ones = jnp.ones((dys[0].size // shape[-1],), jnp.float32)

    def gradient(_: None, tap: Int[Array, " axes"]) -> tuple[None, Float[Array, " D"]]:
        windows = [jax.lax.dynamic_slice(rows, (0, *tap, 0), dys[0].shape) for rows in padded]
        over_rows = reduce(operator.add, [window * dy for window, dy in zip(windows, dys, strict=True)])
        return None, jnp.matmul(ones, over_rows.reshape(-1, shape[-1]), precision=jax.lax.Precision.HIGHEST)

    taps = jnp.asarray(list(np.ndindex(shape[:-1])), jnp.int32)
    return jax.lax.scan(gradient, None, taps)[1].reshape(shape)


def _pad(x: Float[Array, "B *spatial D"], padding: Padding, *, more_rows: int = 0) -> Float[Array, "C *padded D"]:
    """Negative padding crops. The barrier keeps XLA from computing `x` anew for every tap."""
    widths = ((0, more_rows, 0), *((left, right, 0) for left, right in padding), (0, 0, 0))
    return jax.lax.optimization_barrier(jax.lax.pad(x, jnp.zeros((), x.dtype), widths))


def _window(tap: tuple[int, ...], sizes: "list[int] | tuple[int, ...]") -> tuple[slice, ...]:
    """All rows, and `sizes` frames from where `tap` is."""
    return (slice(None), *(slice(at, at + size) for at, size in zip(tap, sizes, strict=True)))
