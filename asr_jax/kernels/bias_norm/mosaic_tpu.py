"""Bias norm for TPUs: blocks of rows are read once, for values and for gradients (Pallas)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.kernels.bias_norm.reference import TINY
from asr_jax.kernels.frames_tpu import add_frames, by_frames, sums_of, valid_frames
from asr_jax.kernels.gradients import of_inputs


def _forward(x: Array, bias: Array, log_scale: Array) -> Array:
    y = jax.ShapeDtypeStruct((1, *x.shape), x.dtype)
    return by_frames(_forward_kernel, None, (x[None],), (bias, log_scale), [y], name="bias_norm")[0][0]


def _backward(x: Array, bias: Array, log_scale: Array, dy: Array) -> tuple[Array, Array, Array]:
    outputs = [jax.ShapeDtypeStruct((1, *x.shape), x.dtype), *sums_of(len(bias), 1)]
    given = (x[None], dy[None]), (bias, log_scale)
    dx, of_bias, of_scale = by_frames(_backward_kernel, None, *given, outputs, name="bias_norm")
    return dx[0], of_bias[0].astype(bias.dtype), of_scale[0, 0].astype(log_scale.dtype)


bias_norm = of_inputs(_forward, _backward)


def _deviation(values: Float[Array, "N D"], bias: Any) -> tuple[Array, Array]:
    """Returns the deviation of rows from the bias, and the inverse of its root mean square."""
    deviation = values - bias[...]
    return deviation, jax.lax.rsqrt(jnp.mean(deviation**2, axis=1, keepdims=True) + TINY)


def _forward_kernel(lengths: Any, x: Any, bias: Any, log_scale: Any, y: Any) -> None:
    values = x[...].astype(jnp.float32)
    _, inverse = _deviation(values, bias)
    y[...] = (values * (inverse * jnp.exp(log_scale[...]))).astype(y.dtype)


def _backward_kernel(
    lengths: Any, x: Any, dy: Any, bias: Any, log_scale: Any, dx: Any, of_bias: Any, of_scale: Any
) -> None:
    """Computes the gradients of a block of rows, and adds their sums to the gradients of the parameters."""
    is_row = valid_frames(lengths, len(x))
    values, of_y = (jnp.where(is_row, each[...].astype(jnp.float32), 0.0) for each in (x, dy))
    deviation, inverse = _deviation(values, bias)
    factor = inverse * jnp.exp(log_scale[...])
    of_scales = factor * jnp.sum(of_y * values, axis=1, keepdims=True)
    through = of_scales * inverse**2 / x.shape[1] * deviation
    dx[...] = (of_y * factor - through).astype(dx.dtype)
    add_frames(of_bias, through)
    add_frames(of_scale, of_scales)
