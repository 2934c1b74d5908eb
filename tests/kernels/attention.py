"""Sizes of attention with relative positions for tests, and the values and gradients of its reference."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels import cases
from asr_jax.kernels.relative_attention.reference import attend
from tests.kernels.drawn import drawn

SIZES = [(3, 7, 2, 4, 3, 5), (2, 130, 1, 8, 4, 8), (2, 1, 1, 4, 4, 4)]
"""Rows, frames, heads, widths of queries, of position queries and of values: odd sizes, several blocks, one frame."""
DRAWN = drawn("relative_attention", (3, 4), (1, 200), (1, 4), (1, 40), (1, 8), (1, 40))
SCALE = 0.3


def made(sizes: tuple[int, ...], dtype: Any = jnp.float32) -> tuple[Any, ...]:
    *arrays, lengths = cases.attention(*sizes)
    return jax.device_put((*(each.astype(dtype) for each in arrays), lengths))


def scale_of(expected: Any) -> float:
    """Returns the largest magnitude, or 1 if all values are 0, as gradients of the scores of a single key are."""
    return float(jnp.abs(expected).max(initial=0)) or 1.0


def reference_gradients(given: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
    """Values of the reference, random cotangents, and the gradients."""
    *arrays, lengths = given
    values, transpose = jax.vjp(lambda *each: attend(*each, lengths, scale=SCALE), *arrays)
    cotangent = jax.device_put(np.asarray(np.random.default_rng(0).normal(size=values.shape), values.dtype))
    return values, cotangent, transpose(cotangent)
