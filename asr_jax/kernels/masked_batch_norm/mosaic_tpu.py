"""Parts of batch norm for TPUs, with the signatures of `reference`: blocks of frames are read once (Pallas)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from asr_jax.kernels.frames_tpu import add_frames, by_frames, sums_of, valid_frames
from asr_jax.kernels.masked_batch_norm.reference import Sums


def masked_sums(x: Array, lengths: Array, shift: Array | None) -> Sums:
    shift = jnp.zeros(x.shape[2], jnp.float32) if shift is None else shift
    return _summed(_masked_sums_kernel, lengths, (x,), (shift,))


def gradient_sums(x: Array, dy: Array, mean: Array, inverse: Array) -> Sums:
    return _summed(_gradient_sums_kernel, None, (x, dy), (mean, inverse))


def normalise(x: Array, mean: Array, scale: Array, bias: Array) -> Array:
    return by_frames(_normalise_kernel, None, (x,), (mean, scale, bias), _like(x), name="normalise_kernel")[0]


def input_gradient(
    x: Array, dy: Array, lengths: Array, mean: Array, inverse: Array, gain: Array, sums: Sums, num: Array
) -> Array:
    of_channels = (mean, inverse, gain, *(each / num for each in sums))
    kernel: Any = _input_gradient_kernel
    return by_frames(kernel, lengths, (x, dy), of_channels, _like(x), name="input_gradient_kernel")[0]


def _summed(kernel: Any, lengths: Any, of_frames: tuple[Array, ...], of_channels: tuple[Array, ...]) -> Sums:
    width, name = of_frames[0].shape[2], kernel.__name__.strip("_")
    first, second = by_frames(kernel, lengths, of_frames, of_channels, sums_of(width, width), name=name)
    return first[0], second[0]


def _like(x: Array) -> list[Any]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype)]


def _masked_sums_kernel(lengths: Any, x: Any, shift: Any, sums: Any, squares: Any) -> None:
    deviation = jnp.where(valid_frames(lengths, len(x)), x[...].astype(jnp.float32) - shift[...], 0.0)
    add_frames(sums, deviation)
    add_frames(squares, deviation**2)


def _gradient_sums_kernel(lengths: Any, x: Any, dy: Any, mean: Any, inverse: Any, of_bias: Any, of_gain: Any) -> None:
    of_y = jnp.where(valid_frames(lengths, len(x)), dy[...].astype(jnp.float32), 0.0)
    unit = (x[...].astype(jnp.float32) - mean[...]) * inverse[...]
    add_frames(of_bias, of_y)
    add_frames(of_gain, jnp.where(of_y != 0, of_y * unit, 0.0))


def _normalise_kernel(lengths: Any, x: Any, mean: Any, scale: Any, bias: Any, y: Any) -> None:
    y[...] = ((x[...].astype(jnp.float32) - mean[...]) * scale[...] + bias[...]).astype(y.dtype)


def _input_gradient_kernel(
    lengths: Any, x: Any, dy: Any, mean: Any, inverse: Any, gain: Any, bias_mean: Any, gain_mean: Any, dx: Any
) -> None:
    through = bias_mean[...] + (x[...].astype(jnp.float32) - mean[...]) * (inverse[...] * gain_mean[...])
    of_y = dy[...].astype(jnp.float32) - jnp.where(valid_frames(lengths, len(x)), through, 0.0)
    dx[...] = (gain[...] * inverse[...] * of_y).astype(dx.dtype)
