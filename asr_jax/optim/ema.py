"""Exponential moving average of parameters and normalisation statistics."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from asr_jax.core.pytrees import Tree


def updated_average(average: Tree, live: Tree, *, decay: float, updates: Int[Array, ""]) -> Tree:
    """The average after update number `updates` (1 for the first), in float32.

    The decay is at most (1 + u) / (10 + u), so that the initial weights are forgotten early in a run.
    """
    bounded = jnp.minimum(decay, (1 + updates) / (10 + updates))

    def updated(old: Array, new: Array) -> Array:
        if not jnp.issubdtype(old.dtype, jnp.floating):
            return new  # a count has no average
        return old * bounded + new.astype(old.dtype) * (1 - bounded)

    return jax.tree.map(updated, average, live)
