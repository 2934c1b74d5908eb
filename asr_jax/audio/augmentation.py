"""Base classes of augmentations, which run on the device inside the training step.

Random values are drawn for each row of a batch. They depend only on the run's seed, the batch's place in the plan and
the row's number, not on the number of devices or on the other rows.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.ramp import Ramp
from asr_jax.core.random_streams import row_keys
from asr_jax.core.settings import NonNegativeInt, Share, settings

Rows = Float[Array, "B ..."]
"""Samples `[B, S]` or frames `[B, T, F]` of a batch."""
Lengths = Int[Array, " B"]
"""Number of valid samples or frames of each row."""
Drawn = dict[str, Array]
"""Random values drawn for a row or a batch: a dict from the name of a quantity to its array."""
Sounds = Mapping[str, Array]
"""Recordings that augmentations need, keyed by `sound` of the augmentation: see `audio.sounds.read_sounds`."""


@settings
class Augmentation:
    """Settings of an augmentation of frames; calling it augments a batch.

    Augmentations apply to frames before they are stacked, or to ready features as they are. They change values, never
    lengths.
    """

    moves_frames: ClassVar[bool] = False
    """Whether the augmentation changes time alignment. All views of an utterance then share the random values, because
    views are compared frame by frame."""
    probability: Share = 1.0
    """Probability that an utterance is augmented, from 0 to 1."""
    ramp_updates: NonNegativeInt = 0
    """Number of updates during which the probability rises linearly to `probability`. At the first update it is
    1 / `ramp_updates` of it. 0: the probability is constant."""

    def check(self, front_end: FrontEnd) -> None:
        """Checks that the augmentation can be applied to the features of a front-end.

        Raises:
            ValueError: If it cannot.
        """
        if not front_end.bins:
            raise ValueError(
                f"{type(self).__name__} requires a front-end with mel bins, but {type(front_end).__name__} returns "
                "samples: remove the augmentation from augment"
            )

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        """Draws the random values of one row.

        Args:
            key: Random key of the row.
            size: Shape of the row with padding.
            length: Number of valid samples or frames.
            step: Number of updates applied so far.

        Returns:
            Random values: a dict from the name of a quantity to its array.
        """
        raise NotImplementedError

    def apply(self, row: Float[Array, "..."], length: Int[Array, ""], drawn: Drawn) -> Float[Array, "..."]:
        """Applies the augmentation to one row.

        Args:
            row: Samples `[S]` or frames `[T, F]` with padding.
            length: Number of valid samples or frames.
            drawn: Result of `draw` for the row.

        Returns:
            The augmented row.
        """
        raise NotImplementedError

    def chance(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Returns the probability that an utterance is augmented after `step` updates."""
        (chance,) = Ramp(first=(0.0,), last=(float(self.probability),), ramp_updates=self.ramp_updates).at(step)
        return chance

    def drawn(self, values: Rows, lengths: Lengths, key: PRNGKeyArray, *, step: Int[Array, ""]) -> Drawn:
        """Draws the random values of all rows of a batch.

        Args:
            values: Rows of the batch. Only the shape is used.
            key: Random key of the batch.
            step: Number of updates applied so far.

        Returns:
            Values of `draw` for each row, and `applied`, which is True for the rows that are augmented.
        """
        chance = self.chance(step)

        def of_row(key: PRNGKeyArray, length: Int[Array, ""]) -> Drawn:
            of_chance, of_rest = jax.random.split(key)
            applied = jax.random.bernoulli(of_chance, chance)
            return {"applied": applied} | self.draw(of_rest, values.shape[1:], length, step=step)

        return jax.vmap(of_row)(row_keys(key, len(values)), lengths)

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        """Applies the augmentation to the rows of a batch for which `applied` is True.

        Args:
            drawn: Result of `drawn` for the batch.
            front_end: Front-end whose samples or frames these are.
            sounds: Recordings that the augmentation needs.

        Returns:
            The augmented batch.
        """

        def of_row(row: Array, length: Array, drawn: Drawn) -> Array:
            return jnp.where(drawn["applied"], self.apply(row, length, drawn), row)

        return jax.vmap(of_row)(values, lengths, drawn)

    def __call__(
        self,
        values: Rows,
        lengths: Lengths,
        key: PRNGKeyArray,
        *,
        step: Int[Array, ""],
        front_end: FrontEnd,
        sounds: Sounds,
    ) -> Rows:
        drawn = self.drawn(values, lengths, key, step=step)
        return self.changed(values, lengths, drawn, front_end=front_end, sounds=sounds)


@settings
class AudioAugmentation(Augmentation):
    """Settings of an augmentation of samples, applied before the front-end.

    Samples are float32 with full scale 32768. Not applicable to ready features.
    """

    def check(self, front_end: FrontEnd) -> None:
        """Accepts every front-end."""


def descending(**ranges: tuple[float, float]) -> Iterator[str]:
    """Yields a message for each range, by its field's name, whose lower limit is above its upper limit."""
    for name, (low, high) in ranges.items():
        if low > high:
            yield f"{name} is {(low, high)}: expected the lower limit first"
