"""The few compiled shapes of batches of a server: some lengths of rows, each with some numbers of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from asr_jax.core.settings import PositiveInt
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.limits import LEAST_S, BatchLimits, bucket_of

NUM_LENGTHS = 6
"""Largest number of lengths of rows."""
RATIO = 2**0.5
"""Ratio of consecutive lengths of rows."""
FACTOR = 4
"""Ratio of consecutive numbers of rows."""
FILLED = 3 / 4
"""Smallest share of the rows of a batch that are used, if a shape with fewer rows exists."""
MANY = 1 << 20


@dataclass(frozen=True)
class Shapes:
    """Shapes of batches, by the length of their rows and then by their number, smallest first."""

    of_lengths: tuple[tuple[Bucket, ...], ...]

    @classmethod
    def of(
        cls,
        limits: BatchLimits,
        longest_s: float,
        scale: Scale,
        *,
        num_devices: int,
        num_lengths: PositiveInt = NUM_LENGTHS,
    ) -> "Shapes":
        """Returns shapes within limits.

        Args:
            longest_s: Longest audio in seconds that is computed at once.
            num_lengths: Largest number of lengths of rows.
        """
        lengths = [longest_s / RATIO**power for power in reversed(range(num_lengths))]
        lengths = [length for length in lengths if length >= LEAST_S] or [longest_s]
        of_lengths = []
        for seconds in lengths:
            most = limits.rows_of(seconds, MANY, num_devices=num_devices)
            numbers, num = list[int](), num_devices
            while num < most:
                numbers.append(num)
                num *= FACTOR
            longest = round(seconds * scale.per_s)
            of_lengths.append(tuple(bucket_of(longest, rows, scale) for rows in (*numbers, most)))
        return cls(tuple(of_lengths))

    @property
    def all(self) -> list[Bucket]:
        """All shapes."""
        return [bucket for buckets in self.of_lengths for bucket in buckets]

    def place(self, num_samples: int) -> int:
        """Returns the number of the shortest length that has room for samples; the longest one if none has."""
        rooms = [buckets[0].length for buckets in self.of_lengths]
        return next((place for place, room in enumerate(rooms) if num_samples <= room), len(rooms) - 1)

    def chosen(self, waiting: Sequence[int]) -> tuple[Bucket, list[int]]:
        """Chooses the next batch.

        The first recording determines the length of rows. Its batch has others of the same length in order, and, if
        rows are left, shorter ones.

        Args:
            waiting: Numbers of samples of the recordings that wait, in order; at least one.

        Returns:
            The shape, and the positions of the recordings of its rows.
        """
        places = [self.place(num) for num in waiting]
        same = [row for row, place in enumerate(places) if place == places[0]]
        buckets = self.of_lengths[places[0]]
        fitting = [bucket for bucket in buckets if bucket.batch_size * FILLED <= len(same)] or buckets[:1]
        shorter = [row for row, place in enumerate(places) if place < places[0]]
        return fitting[-1], [*same, *shorter][: fitting[-1].batch_size]
