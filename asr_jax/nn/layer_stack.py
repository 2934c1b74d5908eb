"""Stacks of equal layers: one scan over them, so that the time to compile does not depend on their number."""

from typing import Any

from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from asr_jax.nn.remat import Remat, rematerialised
from asr_jax.nn.schedules import Step

Biases = tuple[Float[Array, "H C"], Float[Array, "H C"]]
"""Content and position biases of relative attention."""


@struct.dataclass
class LayerInputs:
    """Inputs of all layers of an encoder's stack in addition to the frames."""

    allowed: Bool[Array, "B #T S"]
    """Keys (last axis) that each query may attend to."""
    lengths: Int[Array, " B"]
    step: Step
    positions: Float[Array, "R P"] | None = None
    """Encodings of relative positions. None: attention has none."""
    biases: Biases | None = None
    """Biases that all layers have in common. None: each layer has its own."""
    feature_mask: Float[Array, "B 1 D"] | None = None
    """0 for the masked channels of each row, otherwise 1. None: no masks."""
    context: Int[Array, ""] | None = None
    """Index of the context of attention that was drawn in training. None: the first one."""


def layer_stack(
    layer: type[nn.Module], num_layers: int, remat: Remat, *, in_axes: Any = nn.broadcast, **options: Any
) -> Any:
    """Returns a module class that applies `num_layers` layers with stacked parameters, [L ...].

    Args:
        layer: Class of a layer. Its `__call__` gets the carry and further arguments, and returns the new carry and an
            output to collect for all layers, or None.
        in_axes: For each further argument, the axis of the layers, or `nn.broadcast` if all layers get the same.
    """
    return nn.scan(
        rematerialised(layer, remat),
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True, "dropout": True, "regularise": True},
        in_axes=in_axes,
        length=num_layers,
        check_constancy_invariants=False,  # True would trace the layer a second time
        **options,
    )


def tied_biases(module: nn.Module, num_heads: int, dim: int) -> Biases:
    """Creates biases of attention that all layers have in common, as parameters of a module of width `dim`."""
    shape, zeros = (num_heads, dim // num_heads), nn.initializers.zeros
    return module.param("content_bias", zeros, shape), module.param("position_bias", zeros, shape)
