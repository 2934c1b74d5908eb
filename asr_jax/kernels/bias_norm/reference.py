"""The reference implementation of bias norm."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

TINY = 1e-20
"""Constant that is added to the mean square. Padding may equal the bias; this avoids infinity times zero."""


def bias_norm(x: Float[Array, "N D"], bias: Float[Array, " D"], log_scale: Float[Array, ""]) -> Float[Array, "N D"]:
    """Computes `api.bias_norm` of rows."""
    wide = x.astype(jnp.float32)
    deviation = wide - bias.astype(jnp.float32)[None]
    inverse = jax.lax.rsqrt(jnp.mean(deviation**2, axis=-1, keepdims=True) + TINY)
    return (wide * (inverse * jnp.exp(log_scale))).astype(x.dtype)
