"""Weighted sums of groups of frames for TPUs (Pallas)."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from asr_jax.kernels.elementwise_tpu import ELEMENTS, ROWS
from asr_jax.kernels.gradients import of_inputs


def _forward(x: Array, weights: Array) -> Array:
    out = jax.ShapeDtypeStruct((*weights.shape[:2], x.shape[2]), x.dtype)
    return _call(_forward_kernel, x, weights, out=(out,))[0]


def _backward(x: Array, weights: Array, dy: Array) -> tuple[Array, ...]:
    return _call(_backward_kernel, x, weights, dy, out=(x, weights))


weighted_sums = of_inputs(_forward, _backward)


def _call(kernel: Any, x: Array, weights: Array, *more: Array, out: tuple[Any, ...]) -> tuple[Array, ...]:
    """Calls a kernel for each block of groups of a row."""
    channels, (rows, num_groups, size) = x.shape[2], weights.shape
    block = max(ELEMENTS // (size * channels) // ROWS * ROWS, ROWS)
    block = min(block, -(-num_groups // ROWS) * ROWS)

    def spec(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, block * size if array is x else block, array.shape[2]), lambda b, i: (b, i, 0))

    found: tuple[Array, ...] = pl.pallas_call(
        kernel,
        grid=(rows, pl.cdiv(num_groups, block)),
        in_specs=[spec(each) for each in (x, weights, *more)],
        out_specs=[spec(each) for each in out],
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in out],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        name="weighted_sums",
    )(x, weights, *more)
    return tuple(found)


def _forward_kernel(x: Any, weights: Any, y: Any) -> None:
    frames, weights = _groups(x, weights.shape), weights[...]
    parts = [_weighted(frames[:, i], weights[:, i : i + 1]) for i in range(weights.shape[1])]
    y[...] = functools.reduce(operator.add, parts).astype(y.dtype)


def _backward_kernel(x: Any, weights: Any, dy: Any, dx: Any, of_weights: Any) -> None:
    frames, weights, gradient = _groups(x, weights.shape), weights[...], dy[...].astype(jnp.float32)
    columns = [weights[:, i : i + 1] for i in range(weights.shape[1])]
    dx[...] = jnp.stack([each * gradient for each in columns], 1).reshape(dx.shape).astype(dx.dtype)
    products = [jnp.where(each > 0, frames[:, i] * gradient, 0) for i, each in enumerate(columns)]
    of_weights[...] = jnp.concatenate([jnp.sum(each, 1, keepdims=True) for each in products], 1)


def _groups(x: Any, shape: tuple[int, int]) -> Float[Array, "S G D"]:
    return x[...].astype(jnp.float32).reshape(*shape, -1)


def _weighted(frame: Array, weight: Array) -> Array:
    """Product that is 0 if the weight is: the frames of padding may have any values."""
    return jnp.where(weight > 0, frame * weight, 0)
