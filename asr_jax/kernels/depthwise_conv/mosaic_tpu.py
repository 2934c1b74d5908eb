"""Depthwise convolution over time for TPUs: a row of frames stays in VMEM for all taps (Pallas).

A program has `LANES` channels. The stride is 1. The input's gradient is then a convolution with the filters in reverse.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from asr_jax.kernels.depthwise_conv.reference import Pair, Window
from asr_jax.kernels.tiles_tpu import LANES

BLOCK = 64
"""Number of frames whose sums are in registers."""
MOST_FRAMES = 5120
"""Largest number of frames with their padding that fit into VMEM."""


def conv(x: Array, kernel: Array, *, window: Window) -> Array:
    """Computes `reference.conv` over time, for a stride of 1."""
    return _conv(x[:, :, 0], kernel[:, 0], window.padding[0], window.dilations[0])[:, :, None]


def gradients(x: Array, kernel: Array, dy: Array, *, window: Window) -> tuple[Array, Array]:
    """Computes `reference.gradients` over time, for a stride of 1."""
    x, kernel, dy, padding, dilation = x[:, :, 0], kernel[:, 0], dy[:, :, 0], window.padding[0], window.dilations[0]
    span = dilation * (len(kernel) - 1)
    dx = _conv(dy, kernel[::-1], (span - padding[0], span - padding[1]), dilation)
    dk = jax.ShapeDtypeStruct(kernel.shape, jnp.float32)
    x, padding = _cropped(x, padding)
    dk = _called(_filter_kernel, (x, dy), dk, _of_filters(dk), padding, dilation)
    return dx[:, :, None], dk.astype(kernel.dtype)[:, None]


def _conv(x: Float[Array, "B T D"], kernel: Float[Array, "K D"], padding: Pair, dilation: int) -> Float[Array, "B S D"]:
    x, padding = _cropped(x, padding)
    num_frames = x.shape[1] + sum(padding) - dilation * (len(kernel) - 1)
    y = jax.ShapeDtypeStruct((x.shape[0], num_frames, x.shape[2]), x.dtype)
    return _called(_conv_kernel, (x, kernel), y, _of_row(y), padding, dilation)


def _called(
    body: Any, given: tuple[Array, Array], found: jax.ShapeDtypeStruct, spec: Any, padding: Pair, dilation: int
) -> Any:
    """Calls a kernel for each block of channels and each row of the first array, which is padded."""
    x, other = given
    rows, num_frames, width = x.shape
    lanes = min(width, LANES)
    call = pl.pallas_call(
        functools.partial(body, left=padding[0], dilation=dilation),
        grid=(pl.cdiv(width, lanes), rows),
        in_specs=[_of_row(x), _of_row(other) if other.ndim == 3 else _of_filters(other)],
        out_specs=spec,
        out_shape=found,
        scratch_shapes=[pltpu.VMEM((num_frames + sum(padding), lanes), jnp.float32)],
        # The filters' gradient is a sum over rows, whose programs run one after the other.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name=body.__name__.strip("_"),
    )
    return call(x, other)


def _conv_kernel(x: Any, kernel: Any, y: Any, padded: Any, *, left: int, dilation: int) -> None:
    """Computes a row of outputs."""
    _pad(x, padded, left)

    def block(first: Any, size: int) -> None:
        total = jnp.zeros((size, y.shape[1]), jnp.float32)
        for k in range(len(kernel)):
            total += padded[pl.ds(first + dilation * k, size)] * kernel[k : k + 1].astype(jnp.float32)
        y[pl.ds(first, size)] = total.astype(y.dtype)

    _by_blocks(len(y), block)


def _filter_kernel(x: Any, dy: Any, dk: Any, padded: Any, *, left: int, dilation: int) -> None:
    """Adds a row's products of inputs and gradients of outputs to the gradient of the filters."""
    _pad(x, padded, left)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        dk[...] = jnp.zeros_like(dk)

    def block(first: Any, size: int) -> None:
        of_y = dy[pl.ds(first, size)].astype(jnp.float32)
        for k in range(len(dk)):
            seen = padded[pl.ds(first + dilation * k, size)]
            dk[k : k + 1] += jnp.sum(of_y * seen, axis=0, keepdims=True)

    _by_blocks(len(dy), block)


def _pad(x: Any, padded: Any, left: int) -> None:
    padded[...] = jnp.zeros_like(padded)
    padded[left : left + len(x)] = x[...].astype(jnp.float32)


def _by_blocks(num_frames: int, block: Callable[[Any, int], None]) -> None:
    """Calls `block` with the first frame and the size of each block."""
    whole, rest = divmod(num_frames, BLOCK)

    if whole:

        @pl.loop(0, whole)
        def _(number: Any) -> None:
            block(pl.multiple_of(number * BLOCK, BLOCK), BLOCK)

    if rest:
        block(whole * BLOCK, rest)


def _cropped(x: Float[Array, "B T D"], padding: Pair) -> tuple[Float[Array, "B C D"], Pair]:
    """Returns `x` and its padding without negative padding, which crops."""
    if min(padding) >= 0:
        return x, padding
    return jax.lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (*padding, 0), (0, 0, 0))), (0, 0)


def _of_row(x: Any) -> Any:
    return pl.BlockSpec((None, x.shape[1], min(x.shape[2], LANES)), lambda d, b: (b, 0, d))


def _of_filters(kernel: Any) -> Any:
    return pl.BlockSpec((kernel.shape[0], min(kernel.shape[1], LANES)), lambda d, b: (0, d))
