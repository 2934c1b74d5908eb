"""Exponential moving average of parameters and normalisation statistics."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import NonNegativeInt, ShareBelow1, settings


@settings
class EMA:
    """Settings of the exponential moving average of parameters, which evaluation uses."""

    decay: ShareBelow1 = 0.999
    """Decay per update. 0: no averaging; evaluation uses the live parameters."""
    start: NonNegativeInt = 0
    """Number of updates up to which the average equals the live parameters, to exclude an untrained model from it."""

    def next(self, average: Tree, live: Tree, *, updates: Int[Array, ""]) -> Tree:
        """Returns the average after an update, in float32.

        After `start`, the decay is at most (1 + u) / (10 + u), where u is the number of updates since then. The first
        parameters therefore lose their weight early. Differs from: common practice, which begins with the initial
        parameters and the full decay.

        Args:
            updates: Number of the update, 1 for the first.
        """
        if not self.decay:
            return live
        since = jnp.maximum(updates - self.start, 0)
        bounded = jnp.where(updates <= self.start, 0.0, jnp.minimum(self.decay, (1 + since) / (10 + since)))

        def updated(old: Array, new: Array) -> Array:
            if not jnp.issubdtype(old.dtype, jnp.floating):
                return new  # counters are not averaged
            return old * bounded + new.astype(old.dtype) * (1 - bounded)

        return jax.tree.map(updated, average, live)
