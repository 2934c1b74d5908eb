"""Which batches make which update, and what is due before each."""

import time
from dataclasses import dataclass

from asr_jax.config import Training
from asr_jax.core.errors import UserError
from asr_jax.core.processes import on_main


@dataclass(frozen=True)
class Groups:
    """The batches of each update, as positions of the plan. What an epoch leaves over, fewer batches than `accumulate`,
    is carried into the next epoch's first update, flushed as an update of its own, or dropped.
    """

    batches_per_epoch: int
    accumulate: int
    epoch_end: str

    def __post_init__(self) -> None:
        if self.epoch_end == "dropped" and self.accumulate > self.batches_per_epoch:
            raise UserError(
                f"training.epoch_end is dropped, training.accumulate {self.accumulate}, and an epoch has "
                f"{self.batches_per_epoch} batches: no update would be left; lower accumulate, or carry or flush them"
            )

    @property
    def updates_per_epoch(self) -> float:
        """Whole but where batches are carried."""
        exact = self.batches_per_epoch / self.accumulate
        return {"carried": exact, "flushed": -(-self.batches_per_epoch // self.accumulate), "dropped": int(exact)}[
            self.epoch_end
        ]

    def positions(self, update: int) -> range:
        """Of the batches of an update (0 for the first)."""
        if self.epoch_end == "carried":
            return range(update * self.accumulate, (update + 1) * self.accumulate)
        epoch, number = divmod(update, int(self.updates_per_epoch))
        first = epoch * self.batches_per_epoch + number * self.accumulate
        return range(first, min(first + self.accumulate, (epoch + 1) * self.batches_per_epoch))

    def epoch(self, update: int) -> int:
        """The epoch, from 1, that the update before lies in; 1 before the first."""
        return (self.positions(update - 1)[-1] if update else 0) // self.batches_per_epoch + 1

    def ends_epoch(self, update: int) -> bool:
        """Whether the update before was the first to reach the end of an epoch."""
        if not update:
            return False
        after = self.positions(update).start
        return after // self.batches_per_epoch > self.positions(update - 1).start // self.batches_per_epoch


ALL_DONE = "all updates done"
JOB_DONE = "the epochs of this job are done"
HOURS_OVER = "training.max_hours are over"


@dataclass(frozen=True)
class Due:
    """What is to be done before an update."""

    ends: str
    """Why the job ends here; empty where it goes on."""
    validates: bool
    samples: bool
    at_line: bool


class Timetable:
    """What is due before each update of a job that begins at update `first`."""

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
        """`began_s`: when the job began, by `time.monotonic`; `owes_validation`: whether the job before was stopped
        before a validation that was due, if one was, was over.
        """
        self._training, self._groups, self._first, self._num_updates = training, groups, first, num_updates
        self._began_s, self._owes_validation = began_s, owes_validation
        of_job = training.epochs_this_job
        self._last = num_updates
        if of_job:  # whole epochs from the beginning of the one that the job begins in, parts of one from there on
            begun = (groups.epoch(first + 1) - 1) * groups.updates_per_epoch if of_job == int(of_job) else first
            self._last = min(num_updates, max(first + 1, round(begun + of_job * groups.updates_per_epoch)))

    def due(self, update: int, *, signal: bool) -> Due:
        """`signal`: whether one came since the last update."""
        training, new = self._training, update > self._first or (self._owes_validation and update > 0)
        ends = ALL_DONE if update == self._num_updates else ""
        if not ends and update >= self._last:
            ends = JOB_DONE
        regular = new and update % training.validate_every == 0
        at_epoch = new and training.validate_epochs and self._groups.ends_epoch(update)
        validates = update == self._num_updates or regular or at_epoch
        at_line = validates or update % training.log_every == 0 or bool(ends) or signal
        if not ends and update > self._first and at_line and self._is_over():
            ends = HOURS_OVER
        samples = bool(training.sample_every) and new and update % training.sample_every == 0 and not validates
        return Due(ends, validates, samples, at_line or bool(ends))

    def _is_over(self) -> bool:
        """By the main process's clock; all processes must ask together."""
        limit_s = 3600 * self._training.max_hours
        return bool(limit_s and on_main(lambda: time.monotonic() - self._began_s > limit_s))
