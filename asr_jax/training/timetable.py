"""Schedule of a job: the batches of each update, and the actions before it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import jax

from asr_jax.config import Training
from asr_jax.core.errors import UserError
from asr_jax.core.processes import on_main


@dataclass(frozen=True)
class Groups:
    """Batches of each update, as positions in the plan.

    If fewer than `accumulate` batches remain at the end of an epoch, they are part of the next epoch's first update
    (`epoch_end="carried"`), form a smaller update ("flushed") or are not used ("dropped").
    """

    batches_per_epoch: int | None
    """None: it is not known, and an epoch of updates does not end."""
    accumulate: int
    epoch_end: str
    first: int = 0
    """First update that has `accumulate` batches: 0, or that of the checkpoint at which `accumulate` was changed."""
    start: int = 0
    """Position of the first batch of update `first`."""

    def __post_init__(self) -> None:
        if self.epoch_end == "dropped" and self.batches_per_epoch and self.accumulate > self.batches_per_epoch:
            raise UserError(
                f"training.epoch_end is dropped, training.accumulate {self.accumulate}, and an epoch has "
                f"{self.batches_per_epoch} batches: no update would remain; lower "
                "training.accumulate, or set training.epoch_end to carried or flushed"
            )

    @property
    def updates_per_epoch(self) -> float:
        """Number of updates per epoch; may be fractional if batches are carried. Infinite if it is not known."""
        if self.batches_per_epoch is None:
            return math.inf
        exact = self.batches_per_epoch / self.accumulate
        return {"carried": exact, "flushed": -(-self.batches_per_epoch // self.accumulate), "dropped": int(exact)}[
            self.epoch_end
        ]

    def positions(self, update: int) -> range:
        """Returns the positions of the batches of an update; the first update is 0."""
        number = update - self.first
        if self.epoch_end == "carried" or self.batches_per_epoch is None:
            first = self.start + number * self.accumulate
            return range(max(first, 0), first + self.accumulate)
        epoch, offset = divmod(self.start, self.batches_per_epoch)
        left = self.batches_per_epoch - offset
        rest = -(-left // self.accumulate) if self.epoch_end == "flushed" else left // self.accumulate
        if number >= rest:  # in a later epoch
            whole, number = divmod(number - rest, int(self.updates_per_epoch))
            epoch, offset = epoch + 1 + whole, 0
        first = epoch * self.batches_per_epoch + offset + number * self.accumulate
        return range(max(first, 0), min(first + self.accumulate, (epoch + 1) * self.batches_per_epoch))

    def updates_until(self, epochs: float) -> Fraction:
        """Returns the number of updates until a number of epochs, which may be fractional, is complete."""
        assert self.batches_per_epoch is not None  # `groups_of` refuses lengths in epochs
        # Fractions avoid rounding: 27 epochs of 7 batches, 3 per update, are exactly 63 updates.
        more = Fraction(epochs).limit_denominator(10**6) - Fraction(self.start, self.batches_per_epoch)
        return self.first + more * Fraction(self.updates_per_epoch).limit_denominator(10**6)

    def last_updates(self, epochs: Sequence[int]) -> tuple[int, ...]:
        """Returns the number of updates after which each of the epochs is complete."""
        return tuple(math.ceil(self.updates_until(each)) for each in epochs)

    def epoch(self, update: int) -> int:
        """Returns the epoch (from 1) of the last batch before `update`; 1 before the first update."""
        if self.batches_per_epoch is None:
            return 1
        return (self.positions(update - 1)[-1] if update else 0) // self.batches_per_epoch + 1

    def ends_epoch(self, update: int, every: int = 1) -> bool:
        """Returns whether the update before `update` was the first to reach the end of an epoch.

        Args:
            every: Number of epochs of which only the last one counts.
        """
        if not update or self.batches_per_epoch is None:
            return False
        after, size = self.positions(update).start, every * self.batches_per_epoch
        return after // size > self.positions(update - 1).start // size


ALL_DONE = "all updates done"
JOB_DONE = "the epochs of this job are done"
HOURS_OVER = "training.limits.max_hours is reached"


@dataclass(frozen=True)
class Due:
    """Actions before an update."""

    ends: str
    """Reason for which the job ends; empty if it continues."""
    validates: bool
    """Whether to validate."""
    samples: bool
    """Whether to write transcripts of the validation set."""
    at_line: bool
    """Whether to write the events that are due every log_every updates."""
    saves: bool = False
    """Whether to save a checkpoint because of `saving.every_updates`, `every_epochs` or `milestone_epochs`."""


class Timetable:
    """Determines the actions before each update of a job."""

    def __init__(
        self,
        training: Training,
        groups: Groups,
        *,
        first: int,
        num_updates: int,
        began_s: float,
        owes_validation: bool = False,
    ) -> None:
        """Initialises the timetable of a job.

        Args:
            began_s: Time at which the job started, from `time.monotonic`, in seconds.
            owes_validation: Whether the last job was stopped before it finished a validation.
        """
        self._training, self._groups, self._first, self._num_updates = training, groups, first, num_updates
        self._began_s, self._owes_validation = began_s, owes_validation
        of_job = training.limits.epochs_this_job
        self._last = num_updates
        if of_job:  # whole epochs count from the start of the current epoch, fractions from `first`
            whole = groups.epoch(first + 1) - 1 + of_job
            last = groups.updates_until(whole) if of_job == int(of_job) else first + of_job * groups.updates_per_epoch
            self._last = min(num_updates, max(first + 1, round(last)))

    def due(self, update: int, *, signal: bool) -> Due:
        """Returns the actions before `update`; `signal` states whether a signal was received since the last one."""
        training, new = self._training, update > self._first or (self._owes_validation and update > 0)
        ends = ALL_DONE if update == self._num_updates else ""
        if not ends and update >= self._last:
            ends = JOB_DONE
        regular = new and update % training.validation.every == 0
        at_epoch = new and training.validation.each_epoch and self._groups.ends_epoch(update)
        validates = update == self._num_updates or regular or at_epoch
        saving = training.saving
        saves = new and (
            bool(saving.every_updates and update % saving.every_updates == 0)
            or bool(saving.every_epochs and self._groups.ends_epoch(update, saving.every_epochs))
            or update in self._groups.last_updates(saving.milestone_epochs)
        )
        at_line = validates or saves or update % training.log_every == 0 or bool(ends) or signal
        # Several processes have to agree, which waits for the device. They check at the lines of the log only.
        if not ends and update > self._first and (at_line or jax.process_count() == 1) and self.is_over():
            ends = HOURS_OVER
        every = training.validation.sample_every
        samples = bool(every) and new and update % every == 0 and not validates
        return Due(ends, validates, samples, at_line or bool(ends), saves)

    def is_over(self) -> bool:
        """Returns whether limits.max_hours have passed on the main process. All processes must call it together."""
        limit_s = 3600 * self._training.limits.max_hours
        return bool(limit_s and on_main(lambda: time.monotonic() - self._began_s > limit_s))
