"""Accumulation of gradients in one call for each batch, without compiled steps."""

from collections.abc import Mapping
from types import MappingProxyType

from jax import Array
from jax.sharding import Mesh

from asr_jax.core.batch import Batch
from asr_jax.training.recipe import Recipe
from asr_jax.training.state import TrainState
from asr_jax.training.step import Accumulated, Denominators, add, checked, gradient_of


def accumulate(
    recipe: Recipe,
    state: TrainState,
    accumulated: Accumulated | None,
    batch: Batch,
    denominators: Denominators,
    position: Array,
    sounds: Mapping[str, Array] = MappingProxyType({}),
    *,
    mesh: Mesh | None = None,
) -> Accumulated:
    """Adds the contribution of a batch to the gradient of an update.

    Args:
        recipe: Settings of the training step.
        state: State before the update.
        accumulated: Sums over the previous batches of the update; None before the first batch.
        batch: Batch on all devices.
        denominators: Denominator of each loss term over the whole update.
        position: Position of the batch in the plan.
        sounds: Recordings that augmentations add.
        mesh: As for `gradient_of`.
    """
    carried = state.carried if accumulated is None else accumulated.carried
    found = gradient_of(recipe, state, carried, batch, denominators, position, sounds, mesh=mesh)
    return checked(found) if accumulated is None else add(accumulated, found)
