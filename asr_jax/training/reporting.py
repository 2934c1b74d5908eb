"""What the loop tells: batches that could not be read whole, and means over the updates since the last line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from asr_jax.core.errors import RunError
from asr_jax.core.sums import merge
from asr_jax.data.source import LoadedBatch
from asr_jax.metrics.throughput import Throughput
from asr_jax.observe.events import EventLog
from asr_jax.training.run import SKIPPED, append_skipped
from asr_jax.training.setup import Setup
from asr_jax.training.step import UpdateReport


class Reader:
    """Takes batches, and names and counts what could not be read; each file once, however many epochs there are."""

    def __init__(self, setup: Setup, log: EventLog) -> None:
        self._folder, self._log = setup.folder, log
        self._limit = setup.experiment.training.max_skipped
        self._seen: set[str] = set()

    def take(self, batches: Iterator[LoadedBatch]) -> LoadedBatch:
        """The next batch.

        Raises: RunError where more files than allowed cannot be read.
        """
        loaded = next(batches)
        new = [entry for entry in loaded.skipped if entry["id"] not in self._seen]
        if new:
            self._seen.update(entry["id"] for entry in new)
            append_skipped(self._folder, new)
            self._log.write("skipped", count=len(new), reasons={entry["reason"]: 1 for entry in new})
        if len(self._seen) > self._limit:
            last = loaded.skipped[-1]
            raise RunError(
                f"{len(self._seen)} files cannot be read, more than training.max_skipped ({self._limit}); the last: "
                f"{last['audio_path']}: {last['reason']}. All are named in {self._folder / SKIPPED}; mend them, take "
                "them out of the manifest, or allow more with --training.max-skipped"
            )
        return loaded


class Reporter:
    """Adds up what updates and batches give, and writes a train_step event with their means."""

    def __init__(self, setup: Setup, log: EventLog) -> None:
        self._setup, self._log = setup, log
        self.throughput = Throughput(num_devices=setup.mesh.size, num_warmup=setup.experiment.training.accumulate)
        self._reports: list[UpdateReport] = []
        self.voided = 0

    def add(self, report: UpdateReport, group: Sequence[LoadedBatch]) -> None:
        """An update that was dispatched, and its batches."""
        self._reports.append(report)
        rate_hz = self._setup.model.front_end.rate_hz
        for loaded in group:
            batch = loaded.batch
            rows = batch.weights > 0
            lengths = np.where(rows, batch.lengths, 0)
            assert batch.audio is not None
            processes = jax.process_count()  # a process sees its own rows: the others have as many, about as long
            self.throughput.add(
                utterances=float(rows.sum()) * processes,
                audio_s=float(lengths.sum()) / rate_hz * processes,
                padded_audio_s=batch.audio.size / rate_hz * processes,
                frames=float(self._setup.model.output_length(lengths).sum()) * processes,
                tokens=float(batch.token_lengths.sum()) * processes,
            )

    def wait(self, in_flight: int) -> None:
        """Blocks until no more than `in_flight` updates are still to be done by the device."""
        if len(self._reports) > in_flight:
            jax.block_until_ready(self._reports[-1 - in_flight].updates)

    def flush(self, *, update: int, epoch: int, scales: Mapping[str, float]) -> None:
        """Writes what has come together since the last call."""
        if not self._reports:
            return
        with self.throughput.timed("device"):
            reports: list[Any] = jax.device_get(self._reports)
        means = {name: value.mean() for name, value in merge(report.sums for report in reports).items()}
        losses = {name: mean for name, mean in means.items() if not name.endswith("/infeasible")}
        total = sum(scales[name.split("/")[0]] * mean for name, mean in losses.items())
        voided = sum(not report.applied for report in reports)
        self.voided += voided
        self._log.write(
            "train_step", update=update, epoch=epoch, losses={"total": total} | losses,
            metrics={name: mean for name, mean in means.items() if name not in losses},
            learning_rate=float(reports[-1].learning_rate), voided=self.voided,
            gradient_norm=float(np.mean([report.gradient_norm for report in reports])),
            throughput=self.throughput.rates(),
        )  # fmt: skip
        if voided:
            self._log.write(
                "warning", update=update,
                message=f"{voided} of the last {len(reports)} updates were not finite and changed nothing: "
                "look at the gradient norm before them; lower the learning rate or clip harder",
            )  # fmt: skip
        self._reports = []
        self.throughput.reset()
