"""Saving of checkpoints during training: their content and their times."""

import time
from collections.abc import Mapping
from typing import Any

from asr_jax.checkpoints.store import Checkpoints, restore_meta
from asr_jax.config import from_json, of_run, to_json
from asr_jax.core.errors import RunError
from asr_jax.core.names import counted
from asr_jax.core.processes import gathered, on_main
from asr_jax.core.pytrees import Tree
from asr_jax.inference.trained import tokenizer_files
from asr_jax.metrics.measure import ALL, NAMES, RATES, Measure, deciding, shown
from asr_jax.observe.events import EventLog
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState
from asr_jax.training.uploads import Uploads

POLL_S = 0.05
"""Seconds between two checks whether a checkpoint is written."""


class Saver:
    """Saves checkpoints, and writes an event for each of them when it is on disk."""

    def __init__(
        self, setup: Setup, log: EventLog, checkpoints: Checkpoints, uploads: Uploads, *, num_parameters: int
    ) -> None:
        self.num_parameters = num_parameters
        self.num_without_gain, self.best, self.owes_validation = 0, None, False
        self.forgets = ""
        """Reason for which the best measure so far is discarded; empty if it is kept."""
        self._setup, self._log, self._checkpoints, self._uploads = setup, log, checkpoints, uploads
        self._saved_s = time.monotonic()

    def finished_before(self) -> dict[str, Any] | None:
        """Returns the summary of a run that is already complete; None if it is not."""
        latest, patience = self._checkpoints.latest, self._setup.experiment.training.limits.patience
        if latest is None:
            return None
        meta = restore_meta(self._checkpoints.folder, latest)
        self._remember(meta)
        summary: dict[str, Any] | None = meta["summary"]
        self.owes_validation = summary is None
        gains_nothing = patience and self.num_without_gain >= patience and summary
        if latest < self._setup.num_updates and not gains_nothing:
            return None
        more = "to continue: --training.num-updates N"
        if gains_nothing:
            num = counted(self.num_without_gain, "validation")
            more = f"no gain in {num}; to continue: --training.limits.patience N, or 0"
        # The folder may have been renamed since the summary was written.
        return summary and summary | self._places(latest) | {"already": more}

    def _remember(self, meta: Mapping[str, Any]) -> None:
        """Restores the best measure and the validations since then, if they are of the current decoding and set."""
        measure: Measure = meta["measure"]
        before, best = from_json(meta["experiment"]).primary_decoding, meta[f"best_{measure}"]
        of_before, of_now, is_same_rate = meta.get("best_of", ALL), self._setup.best_of, measure == self._setup.measure
        is_same = meta.get("decoding", before.digest() if before else "") == self._setup.decoding_digest
        if is_same and is_same_rate and of_before == of_now:
            self.num_without_gain, self.best = meta["num_without_gain"], best
            return
        if best is None:
            return
        now = f"not comparable with {NAMES[self._setup.measure]}, which the validation set is judged by now"
        if is_same_rate and is_same:
            now = f"that of training.saving.best_of {of_before} and is not comparable with those of {of_now}"
        elif is_same_rate:
            decoding = self._setup.experiment.primary_decoding
            now = f"from another decoding ({before}) and is not comparable with those of {decoding}"
        self.forgets = (
            f"the best validation {NAMES[measure]}, {shown(measure, best)}, is {now}: the best value and the count for "
            "patience are reset"
        )

    @property
    def _name_of_best(self) -> str:
        return f"best_{self._setup.measure}"

    def summary(self, figures: Mapping[str, Any], update: int, *, best: float | None) -> dict[str, Any]:
        """Returns the summary of the run after a validation."""
        kept = (*RATES, "measure", "losses", "metrics", "mean", "best_of")
        sets = {
            name: {rate: each[rate] for rate in RATES if rate in each} for name, each in figures.get("sets", {}).items()
        }
        return {
            "update": update,
            **{name: figures[name] for name in kept if name in figures},
            **({"sets": sets} if sets else {}),
            self._name_of_best: best,
            "seconds": round(self._log.elapsed_s, 1),
            "parameters": self.num_parameters,
        } | self._places(update)

    def save(
        self,
        update: int,
        state: TrainState,
        average: Tree,
        *,
        summary: dict[str, Any] | None,
        best: float | None,
        num_without_gain: int,
        data_state: dict[str, Any] | None = None,
    ) -> None:
        """Waits for the previous checkpoint and starts to write one in the background.

        Args:
            summary: Summary of the validation after this update; None if there was none.
            num_without_gain: Number of validations since the best one.
            data_state: `LoadedBatch.state` of the last batch. None: the position determines the next batch.

        Raises:
            RunError: If the previous checkpoint could not be written.
        """
        self.finish()
        meta = {
            "data_position": self._setup.groups.positions(update).start,
            **({} if data_state is None else {"data_states": gathered(data_state)}),
            "num_without_gain": num_without_gain,
            self._name_of_best: best,
            "decoding": self._setup.decoding_digest,
            "best_of": self._setup.best_of,
            "measure": self._setup.measure,
            "data": self._setup.data.fingerprints(),
            "devices": self._setup.devices,
            "experiment": to_json(of_run(self._setup.experiment)),
            "tokenizer": tokenizer_files(self._setup.folder),
            "summary": summary,
        }
        measure = self._setup.measure
        measured: dict[str, Any] = {measure: deciding(summary)[measure]} if summary else {}
        self._checkpoints.save(update, state=state, average=average, meta=meta, measured=measured or None)
        self._saved_s = time.monotonic()

    def is_overdue(self) -> bool:
        """Returns whether training.saving.every_minutes have passed. All processes must call it together."""
        limit_s = 60 * self._setup.experiment.training.saving.every_minutes
        return bool(limit_s and on_main(lambda: time.monotonic() - self._saved_s > limit_s))

    def report(self, *, wait: bool = False) -> None:
        """Writes an event for a checkpoint that was finished since the last call, and uploads it if it is the best.

        All processes must call it together.

        Raises:
            RunError: On all processes, if one of them could not write the checkpoint.
        """
        # The error of a process is exchanged before Orbax's barrier, where the others would wait for it.
        done: int | None = None
        while True:
            wrong = ""
            try:
                done = self._checkpoints.finished() or done
            except RunError as error:
                wrong = str(error)
            of_all = gathered([wrong, self._checkpoints.is_saving])
            for number, (found, _) in enumerate(of_all):
                if found and len(of_all) > 1:
                    self._checkpoints.abandon()
                    raise RunError(f"process {number}: {found}")
                if found:
                    raise RunError(found)
            if not wait or not any(is_saving for _, is_saving in of_all):
                break
            time.sleep(POLL_S)
        if done is not None:
            self._log.write("checkpoint_saved", update=done, path=self._checkpoints.path(done))
            self._uploads.offer(self._checkpoints.best)
        self._uploads.poll()

    def finish(self) -> None:
        """Waits for a checkpoint that is being written. Equivalent to `report(wait=True)`."""
        self.report(wait=True)

    def _places(self, update: int) -> dict[str, str]:
        return {"folder": str(self._setup.folder), "checkpoint": str(self._checkpoints.path(update))}
