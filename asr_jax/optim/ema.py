"""Exponential moving average of parameters and normalisation statistics."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from asr_jax.core.errors import check_numbers
from asr_jax.core.pytrees import Tree


@dataclass(frozen=True)
class EMA:
    """Averaged weights, that evaluation uses."""

    decay: float = 0.999
    """Decay per update; 0 for none: evaluation uses the live weights."""
    start: int = 0
    """Updates before which the average is the live weights: those of a model that is not yet trained do not linger."""

    def __post_init__(self) -> None:
        check_numbers(self, "start", least=0)
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay is {self.decay}: expected at least 0 and less than 1")

    def next(self, average: Tree, live: Tree, *, updates: Int[Array, ""]) -> Tree:
        """The average after update number `updates` (1 for the first), in float32.

        From `start` on the decay is at most (1 + u) / (10 + u), u being the updates since, so that the first weights
        are forgotten early. Differs from common practice, which begins with the initial weights and a full decay.
        """
        if not self.decay:
            return live
        since = jnp.maximum(updates - self.start, 0)
        bounded = jnp.where(updates <= self.start, 0.0, jnp.minimum(self.decay, (1 + since) / (10 + since)))

        def updated(old: Array, new: Array) -> Array:
            if not jnp.issubdtype(old.dtype, jnp.floating):
                return new  # a count has no average
            return old * bounded + new.astype(old.dtype) * (1 - bounded)

        return jax.tree.map(updated, average, live)
