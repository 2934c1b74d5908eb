"""Dynamic loss scaling, which prevents gradients from vanishing in float16."""

from collections.abc import Iterator
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.pytrees import Node
from asr_jax.core.settings import PositiveFloat, PositiveInt, above, settings


@settings
class LossScale:
    """Settings of dynamic loss scaling, which precision f16 uses.

    The loss is multiplied by the scale, and gradients are divided by it. An update whose gradients overflow changes no
    parameters and lowers the scale.
    """

    initial: PositiveFloat = 16.0
    """Scale of the first update. The loss is a sum over the batch, not a mean; scales are therefore smaller than usual
    by a factor of the batch's number of labels."""
    factor: Annotated[float, above(1)] = 2.0
    """Factor by which the scale falls after an overflow, and rises after `growth_updates` updates without overflow."""
    growth_updates: PositiveInt = 2000
    """Number of updates without overflow after which the scale rises."""
    floor: PositiveFloat = 1e-4
    """Scale below which the run stops, because overflows at such a scale have another cause."""

    def problems(self) -> Iterator[str]:
        if self.initial < self.floor:
            yield f"initial is {self.initial}: expected at least floor, {self.floor}"

    def next(self, scaling: "Scaling", finite: Bool[Array, ""]) -> "Scaling":
        """Returns the scaling after an update; `finite` is whether all its gradients were finite."""
        grown = scaling.good + 1 >= self.growth_updates
        scale = jnp.where(
            finite, jnp.where(grown, scaling.scale * self.factor, scaling.scale), scaling.scale / self.factor
        )
        return Scaling(jnp.minimum(scale, 2.0**100), jnp.where(finite & ~grown, scaling.good + 1, 0))


class Scaling(Node):
    """State of the loss scaling."""

    scale: Float[Array, ""]
    good: Int[Array, ""]
    """Number of updates without overflow since the scale last changed."""


def no_scaling() -> Scaling:
    """Returns a constant scale of 1, for precisions other than f16."""
    return Scaling(jnp.ones(()), jnp.zeros((), jnp.int32))
