"""What all augmentations have: they run on the device, inside the training step, drawn anew for each row of a batch.

What is drawn depends on the run's seed, the batch's place in the plan and the row, and on nothing else: not on the
number of devices, and not on the rows beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.stages import risen

Drawn = dict[str, Array]
"""What was drawn for a row, by name, to be shown and to be applied."""
Sounds = Mapping[str, Array]
"""Recordings that augmentations add, by name: see `audio.sounds`."""


@dataclass(frozen=True)
class Augmentation:
    """Settings of an augmentation, of the frames of a batch before they are stacked (of ready features as they are).
    Calling it changes values, never lengths.
    """

    moves_frames: ClassVar[bool] = False
    """Whether what is said comes at other times: views of an utterance, which are compared frame by frame, share it."""
    probability: float = 1.0
    """Share of the utterances that are changed."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability is {self.probability}: expected within 0 and 1")

    def check(self, front_end: FrontEnd) -> None:
        """Raises: ValueError where the front-end's features are not those that the augmentation is made for."""
        if not front_end.bins:
            raise ValueError(
                f"{type(self).__name__} changes frames of bins, and {type(front_end).__name__} gives samples: take it "
                "out of augment"
            )

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        """For a row of `size` values of which `length` are valid, after `step` updates."""
        raise NotImplementedError

    def apply(self, row: Float[Array, "..."], length: Int[Array, ""], drawn: Drawn) -> Float[Array, "..."]:
        """The row, changed as drawn."""
        raise NotImplementedError

    def drawn(
        self, values: Float[Array, "B ..."], lengths: Int[Array, " B"], key: PRNGKeyArray, *, step: Int[Array, ""]
    ) -> Drawn:
        """What is drawn for each row of a batch; `applied` says for which it counts."""

        def of_row(number: Int[Array, ""], length: Int[Array, ""]) -> Drawn:
            of_chance, of_rest = jax.random.split(jax.random.fold_in(key, number))
            applied = jax.random.bernoulli(of_chance, float(self.probability))
            return {"applied": applied} | self.draw(of_rest, values.shape[1:], length, step=step)

        return jax.vmap(of_row)(jnp.arange(len(values)), lengths)

    def changed(
        self, values: Float[Array, "B ..."], lengths: Int[Array, " B"], drawn: Drawn, *, sounds: Sounds
    ) -> Float[Array, "B ..."]:
        """The batch, changed as drawn."""

        def of_row(row: Array, length: Array, drawn: Drawn) -> Array:
            return jnp.where(drawn["applied"], self.apply(row, length, drawn), row)

        return jax.vmap(of_row)(values, lengths, drawn)

    def __call__(
        self,
        values: Float[Array, "B ..."],
        lengths: Int[Array, " B"],
        key: PRNGKeyArray,
        *,
        step: Int[Array, ""],
        sounds: Sounds,
    ) -> Float[Array, "B ..."]:
        return self.changed(values, lengths, self.drawn(values, lengths, key, step=step), sounds=sounds)


@dataclass(frozen=True)
class AudioAugmentation(Augmentation):
    """Of samples, float32 of full scale 32768, before the front-end. They are not for ready features."""

    def check(self, front_end: FrontEnd) -> None:
        """Raises: ValueError where the front-end is not one that the augmentation is made for."""


@dataclass(frozen=True)
class Ramp:
    """A range that moves from one to another while a run goes on."""

    first: tuple[float, float] = (30.0, 60.0)
    """The range at first."""
    last: tuple[float, float] = (0.0, 30.0)
    """The range in the end."""
    begin_updates: int = 0
    """Updates before it begins to move."""
    ramp_updates: int = 0
    """Updates in which it moves; 0: at once."""

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            low, high = getattr(self, name)
            if not -math.inf < low <= high < math.inf:
                raise ValueError(f"{name} is {(low, high)}: expected finite numbers, the lower end first")
        if min(self.begin_updates, self.ramp_updates) < 0:
            raise ValueError(
                f"begin_updates {self.begin_updates} and ramp_updates {self.ramp_updates}: expected 0 or more"
            )

    def draw(self, key: PRNGKeyArray, *, step: Int[Array, ""]) -> Float[Array, ""]:
        """Uniform in the range after `step` updates."""
        moved = risen(step, self.begin_updates, self.ramp_updates)
        low, high = (a + (b - a) * moved for a, b in zip(self.first, self.last, strict=True))
        return low + (high - low) * jax.random.uniform(key)
