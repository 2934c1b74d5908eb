"""Inputs of the kernels for norms, and the values and gradients of their references."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels.bias_norm.reference import bias_norm
from asr_jax.kernels.masked_batch_norm import reference
from tests.kernels.drawn import drawn

NORM_SIZES = [(3, 7, 5), (2, 300, 130), (1, 1, 1)]
"""Rows, frames and channels: odd sizes, several blocks, sizes of 1."""
DRAWN = drawn("norms", (1, 4), (1, 400), (1, 200))


def for_norms(rows: int, frames: int, width: int) -> tuple[Any, ...]:
    """Frames with a large mean, a cotangent, lengths (full, random, 0 in the last of several rows) and vectors."""
    random = np.random.default_rng(frames)
    x, dy = (random.normal(mean, 1, (rows, frames, width)).astype(np.float32) for mean in (2, 0))
    lengths = random.integers(0, frames + 1, rows)
    lengths[-1], lengths[0] = 0, frames
    vectors = random.uniform(0.5, 2, (5, width)).astype(np.float32)
    return jax.device_put((x, dy, lengths.astype(np.int32), *vectors))


def bias_norm_gradients(function: Callable[..., Any], x: Any, dy: Any, bias: Any) -> tuple[Any, ...]:
    """Value and gradients of bias norm for flattened frames."""
    x, dy = (each.reshape(-1, each.shape[-1]) for each in (x, dy))
    y, transpose = jax.vjp(function, x, bias, jnp.float32(0.3))
    return y, *transpose(dy)


def bias_norm_expected(x: Any, dy: Any, bias: Any) -> tuple[Any, ...]:
    return bias_norm_gradients(bias_norm, x, dy, bias)


def batch_norm_parts(module: Any, x: Any, dy: Any, lengths: Any, *vectors: Any, **options: Any) -> list[Any]:
    """Results of all parts of batch norm. The padding of the frames of sums is NaN."""
    mean, inverse, gain, *sums = vectors
    padded = jnp.where(jnp.arange(x.shape[1])[None, :, None] < lengths[:, None, None], x, jnp.nan).astype(x.dtype)
    of_valid = jnp.where(jnp.isnan(padded), 0, dy)
    return [
        *module.masked_sums(padded, lengths, None, **options),
        *module.masked_sums(padded, lengths, mean, **options),
        module.normalise(x, mean, gain, inverse, **options),
        *module.gradient_sums(padded, of_valid, mean, inverse, **options),
        module.input_gradient(x, dy, lengths, mean, inverse, gain, (sums[0], sums[1]), jnp.float32(7), **options),
    ]


def batch_norm_expected(*given: Any) -> list[Any]:
    return batch_norm_parts(reference, *given)
