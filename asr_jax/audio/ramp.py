"""Values that move during training."""

from collections.abc import Iterator

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.settings import Finite, NonNegativeInt, settings


@settings
class Ramp:
    """Values that move linearly from `first` to `last`, such as the lower and the upper limit of a random value."""

    first: tuple[Finite, ...] = (30.0, 60.0)
    """Values before the ramp, in ascending order."""
    last: tuple[Finite, ...] = (0.0, 30.0)
    """Values after the ramp, in ascending order."""
    begin_updates: NonNegativeInt = 0
    """Number of updates before the ramp begins."""
    ramp_updates: NonNegativeInt = 0
    """Length of the ramp in updates. 0: the values change at once."""

    def problems(self) -> Iterator[str]:
        for name, values in (("first", self.first), ("last", self.last)):
            if list(values) != sorted(values):
                yield f"{name} is {values}: expected the lower limit first"
        if len(self.first) != len(self.last):
            yield f"first is {self.first} and last is {self.last}: expected equal numbers of values"

    def at(self, step: Int[Array, ""]) -> list[Float[Array, ""]]:
        """Returns the values that apply after `step` updates."""
        moved = jnp.clip((step + 1 - self.begin_updates) / max(self.ramp_updates, 1), 0.0, 1.0)
        return [a + (b - a) * moved for a, b in zip(self.first, self.last, strict=True)]
