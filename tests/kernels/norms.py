"""Sizes of norms for tests, and the values and gradients of their references."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from asr_jax.kernels import cases
from asr_jax.kernels.bias_norm.reference import bias_norm
from asr_jax.kernels.masked_batch_norm import reference
from tests.kernels.drawn import drawn

NORM_SIZES = [(3, 7, 5), (2, 300, 130), (1, 1, 1)]
"""Rows, frames and channels: odd sizes, several blocks, sizes of 1."""
DRAWN = drawn("norms", (1, 4), (1, 400), (1, 200))


def for_norms(*sizes: int) -> tuple[Any, ...]:
    return jax.device_put(cases.norms(*sizes))


def bias_norm_gradients(function: Callable[..., Any], x: Any, dy: Any, bias: Any) -> tuple[Any, ...]:
    """Value and gradients of bias norm for flattened frames."""
    x, dy = (each.reshape(-1, each.shape[-1]) for each in (x, dy))
    y, transpose = jax.vjp(function, x, bias, jnp.float32(0.3))
    return y, *transpose(dy)


def bias_norm_expected(x: Any, dy: Any, bias: Any) -> tuple[Any, ...]:
    return bias_norm_gradients(bias_norm, x, dy, bias)


def batch_norm_parts(module: Any, x: Any, dy: Any, lengths: Any, *vectors: Any) -> list[Any]:
    """Results of all parts of batch norm. The padding of the frames of sums is NaN."""
    mean, inverse, gain, *sums = vectors
    padded = jnp.where(jnp.arange(x.shape[1])[None, :, None] < lengths[:, None, None], x, jnp.nan).astype(x.dtype)
    of_valid = jnp.where(jnp.isnan(padded), 0, dy)
    return [
        *module.masked_sums(padded, lengths, None),
        *module.masked_sums(padded, lengths, mean),
        module.normalise(x, mean, gain, inverse),
        *module.gradient_sums(padded, of_valid, mean, inverse),
        module.input_gradient(x, dy, lengths, mean, inverse, gain, (sums[0], sums[1]), jnp.float32(7)),
    ]


def batch_norm_expected(*given: Any) -> list[Any]:
    return batch_norm_parts(reference, *given)
