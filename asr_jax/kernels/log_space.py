"""Sums of probabilities by their logarithms."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

NEVER = -1e30
"""Logarithm of probability 0, and score of what is masked: finite, because a difference of infinities is NaN, and of a
magnitude at which adding log-probabilities has no effect."""


def add(a: Array, b: Array) -> Array:
    """Computes log(exp a + exp b). Rounding 1 + exp has a smaller error than rounding the larger value."""
    ratio = 1 + jnp.exp(-jnp.abs(a - b))
    # XLA's CPU compiler does not vectorise a loop with both functions; two loops take a third of the time.
    ratio = lax.platform_dependent(ratio, cpu=lax.optimization_barrier, default=lambda ratio: ratio)
    return jnp.maximum(a, b) + jnp.log(ratio)


def add_in_kernel(a: Array, b: Array) -> Array:
    """Computes `add` in a kernel of Pallas, which has no operations that depend on the platform."""
    return jnp.maximum(a, b) + jnp.log(1 + jnp.exp(-jnp.abs(a - b)))
