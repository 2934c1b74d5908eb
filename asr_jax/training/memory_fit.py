"""Rows of buckets that fit a memory budget, by the memory of their compiled training steps."""

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import jax
import numpy as np
from jax.sharding import Mesh

from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import num_row_devices
from asr_jax.core.names import counted
from asr_jax.core.programs import TRACED, Programs
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import InitialState, abstract_state, lower_initial_state
from asr_jax.training.programs import StepPrograms
from asr_jax.training.recipe import Recipe

ANY_LENGTH = RunLength(10_000, 1_000)
"""Length of the run for steps whose memory is measured. It changes constants of their schedules only, and the length of
the run is not known before the rows are."""


@dataclass(frozen=True)
class MemoryFit:
    """Finds the largest number of rows of each bucket whose compiled step fits a budget; see `buckets.FitRows`."""

    budget_bytes: float
    """Memory of a device that a step may take, with the training state."""
    recipe: Recipe
    layout: Layout
    """Parts of a batch. The step of a part has to fit."""
    mesh: Mesh
    accumulate: int
    """Number of batches of an update."""
    seed: int
    sounds: Mapping[str, np.ndarray] = MappingProxyType({})
    """Recordings that augmentations add."""
    programs: Programs = TRACED
    """Cache of traced programs and of their memory."""

    def __call__(self, buckets: Sequence[Bucket], *, scale: Scale, unit: int, devices: int) -> list[int]:
        """Returns rows over all devices, each a multiple of `unit` and at most the `batch_size` of its bucket.

        Args:
            devices: Number of devices that the rows are for. Steps are compiled for the devices of the mesh, with as
                many rows on each.

        Raises:
            UserError: If the smallest batch of a bucket does not fit.
        """
        shapes = abstract_state(
            lower_initial_state(self.recipe, seed=self.seed, programs=self.programs), self.mesh, self.recipe.sharding
        )
        about = counted(len(buckets), "batch shape")
        print(f"compiling training steps to find how many rows of {about} fit the memory", file=sys.stderr)
        found = []
        for bucket in buckets:
            needed = functools.cache(functools.partial(self._needed, bucket, shapes, scale, unit, devices))
            rows = unit * most_within(needed, bucket.batch_size // unit, self.budget_bytes)
            if not rows:
                raise UserError(
                    f"data.batching.budget is {self.budget_bytes / 1e9:g} GB, and a batch of {unit} × "
                    f"{bucket.length / scale.per_s:.2f} s with {bucket.num_tokens} labels needs "
                    f"{needed(1) / 1e9:.3g} GB on each of {counted(devices, 'device')}: expected at least as much, "
                    "shorter buckets, or a larger training.split"
                )
            found.append(rows)
        return found

    def _needed(
        self, bucket: Bucket, shapes: InitialState, scale: Scale, unit: int, devices: int, number: int
    ) -> float:
        """Memory in bytes that `number` × `unit` rows need on a device, as in `programs.CompiledSteps.memory`."""
        rows = -(-number * unit // devices) * num_row_devices(self.mesh)
        try:
            return self.step_bytes(self.layout.shape(replace(bucket, batch_size=rows)), shapes, scale=scale)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return math.inf

    def step_bytes(self, bucket: Bucket, shapes: InitialState, *, scale: Scale) -> float:
        """Memory in bytes of a device during the training step of a part, with the training state."""
        step = StepPrograms(
            self.recipe, shapes, self.mesh, scale, self.accumulate * self.layout.split, self.sounds, self.programs
        )
        return step.gradient_memory(bucket)


def most_within(needed: Callable[[int], float], most: int, budget: float) -> int:
    """Largest number from 0 to `most` that needs at most `budget`, with few evaluations.

    Needs grow about linearly, so that a line through two numbers predicts the result. The result is verified: it is
    within the budget, and the next number is not, unless it is above `most`.
    """
    low, high = 0, most + 1  # `low` is within the budget, and `high` is not, or is too large
    known, slow = dict[int, float](), 0
    guess = min(1, most)
    while high - low > 1:
        known[guess] = needed(guess)
        width = high - low
        low, high = (guess, high) if known[guess] <= budget else (low, guess)
        slow = slow + 1 if slow > 5 or high - low > width / 2 else 0
        finite = {number: value for number, value in known.items() if math.isfinite(value)}
        if len(known) == 1:
            guess = 2
        elif slow > 5:  # needs are not linear, for example because rows are padded to tiles
            guess = round(math.sqrt(max(low, 1) * high)) if high > 4 * low else (low + high) // 2
        elif len(finite) > 1:
            (first, at_first), (last, at_last) = sorted(finite.items(), key=lambda each: abs(each[1] - budget))[:2]
            slope = max((at_last - at_first) / (last - first), 1e-9)
            guess = math.floor(min(first + (budget - at_first) / slope, most))
        else:
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
    return low
