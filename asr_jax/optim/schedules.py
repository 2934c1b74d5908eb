"""Learning rates by update."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class WarmupHoldDecay:
    """Linear warm-up to the peak, hold, then decay until the last update."""

    peak_lr: float = 1e-3
    """Highest learning rate."""
    warmup_updates: int = 1000
    """Updates of linear warm-up; update number u (from 0) has the rate peak · (u + 1) / (warmup + 1)."""
    hold_updates: int = 0
    """Updates at the peak."""
    decay: Literal["cosine", "linear", "inverse_sqrt", "none"] = "cosine"
    """Shape of the decay; inverse_sqrt is peak · sqrt(start / u), counted from the first update."""
    final_share: float = 0.0
    """Share of the peak that cosine and linear end with, and below which inverse_sqrt does not fall."""

    def __post_init__(self) -> None:
        if not 0 < self.peak_lr < float("inf"):
            raise ValueError(f"peak_lr is {self.peak_lr}: expected a finite number above 0")
        if self.warmup_updates < 0 or self.hold_updates < 0:
            raise ValueError(
                f"warmup_updates {self.warmup_updates} and hold_updates {self.hold_updates}: expected 0 or more"
            )
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share is {self.final_share}: expected within 0 and 1")

    def build(self, num_updates: int) -> optax.Schedule:
        """The rate as a function of the number of updates applied before, for a run of `num_updates`."""
        start = self.warmup_updates + self.hold_updates
        length = max(num_updates - start, 1)

        def rate(updates: jnp.ndarray | int) -> jnp.ndarray:
            update = jnp.asarray(updates, jnp.float32)
            progress = jnp.clip((update - start) / length, 0.0, 1.0)
            decayed = {
                "cosine": lambda: self.final_share + (1 - self.final_share) * 0.5 * (1 + jnp.cos(jnp.pi * progress)),
                "linear": lambda: 1 - (1 - self.final_share) * progress,
                "inverse_sqrt": lambda: jnp.maximum(
                    jnp.sqrt(max(start, 1) / jnp.maximum(update, max(start, 1))), self.final_share
                ),
                "none": lambda: jnp.ones_like(update),
            }[self.decay]()
            warmup = jnp.minimum((update + 1) / (self.warmup_updates + 1), 1.0)
            return self.peak_lr * warmup * decayed

        return rate
