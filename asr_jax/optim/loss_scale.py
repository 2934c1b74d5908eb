"""Dynamic scaling of the loss, so that gradients do not vanish in float16."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.errors import check_numbers
from asr_jax.core.pytrees import Node


@dataclass(frozen=True)
class LossScale:
    """For precision f16: the loss is multiplied by a scale, and gradients are divided by it. An update whose gradients
    overflow changes nothing and lowers the scale.
    """

    initial: float = 16.0
    """Scale of the first update. What goes back through the model is the gradient of a sum over the batch: scales are
    smaller than those of means by as much as the batch has labels."""
    factor: float = 2.0
    """What the scale is divided by after an overflow, and multiplied by after `growth_updates` updates without."""
    growth_updates: int = 2000
    """Updates without overflow after which the scale grows."""
    floor: float = 1e-4
    """The run stops where the scale falls below: then it is not the scale that is wrong."""

    def __post_init__(self) -> None:
        check_numbers(self, "floor", above=0)
        check_numbers(self, "initial", least=self.floor)
        check_numbers(self, "factor", above=1)
        check_numbers(self, "growth_updates", least=1)

    def next(self, scaling: "Scaling", finite: Bool[Array, ""]) -> "Scaling":
        """After an update whose gradients were finite or not."""
        grown = scaling.good + 1 >= self.growth_updates
        scale = jnp.where(
            finite, jnp.where(grown, scaling.scale * self.factor, scaling.scale), scaling.scale / self.factor
        )
        return Scaling(jnp.minimum(scale, 2.0**100), jnp.where(finite & ~grown, scaling.good + 1, 0))


class Scaling(Node):
    """Where the scale is."""

    scale: Float[Array, ""]
    good: Int[Array, ""]
    """Updates without overflow since it last changed."""


def no_scaling() -> Scaling:
    """The scale of other precisions: 1, for good."""
    return Scaling(jnp.ones(()), jnp.zeros((), jnp.int32))
