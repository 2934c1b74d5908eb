"""Reports of the training loop: utterances that cannot be read, and means over the updates since the last line."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from asr_jax.audio.mono import SILENT
from asr_jax.core import devices
from asr_jax.core.errors import RunError
from asr_jax.core.files import append_lines
from asr_jax.core.names import counted
from asr_jax.core.native import native_problems
from asr_jax.core.processes import gathered, is_main, on_main
from asr_jax.core.programs import library_versions
from asr_jax.core.pytrees import num_elements
from asr_jax.core.run_folder import REJECTED, SMOKE, VOIDED
from asr_jax.core.sums import merge
from asr_jax.core.text_files import json_text
from asr_jax.data.batching.crops import about_crops
from asr_jax.data.batching.evaluation import about_long
from asr_jax.data.batching.filters import Rejections
from asr_jax.data.batching.removals import about_removed
from asr_jax.data.loading.source import LoadedBatch
from asr_jax.data.manifests.inputs import Role, described
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, rejected_everywhere
from asr_jax.metrics.throughput import Throughput
from asr_jax.models.terms import total_of
from asr_jax.observe.events import EventLog
from asr_jax.training.initial_state import InitialState
from asr_jax.training.run import RejectedFile
from asr_jax.training.run_data import about_round_trips
from asr_jax.training.setup import Setup, other_devices, other_product, short_run
from asr_jax.training.step import UpdateReport

SPLIT_CHANGED = (
    "training.split is {}: batch norm uses the statistics of each part of a batch, so losses differ from those with "
    "another split"
)


class RejectedAudio:
    """Records the utterances that cannot be read or have remarks, once over all epochs and jobs of the run."""

    def __init__(self, folder: Path, log: EventLog, *, utterances: Utterances, limit: int) -> None:
        self._file, self._log, self._limit = RejectedFile(folder), log, limit
        before = on_main(lambda: [(*key, SILENT in reason) for key, reason in self._file.reasons().items()])
        # The file also has utterances that a filter rejected. They are not in the index.
        self._seen = utterances.named({(name, place) for name, place, _ in before})
        silent = self._seen & {(name, place) for name, place, is_silent in before if is_silent}
        self._num_utterances = len(utterances)
        self._num_filtered = 0
        """Number of items of shards that are outside of a limit, which is known when they are read."""
        self._num_silent = len(silent)
        """Number of silent utterances. Large corpora have some, and the limit does not count them."""
        self._new: list[Rejected] = []
        self._seen_differing = set[tuple[str, str]]()
        self._differing: list[Rejected] = []

    def add(self, group: Sequence[LoadedBatch]) -> None:
        """Collects the utterances of an update's batches that could not be read or have remarks."""
        self._differing += [e for loaded in group for e in loaded.differing if _key(e) not in self._seen_differing]
        self._new += [entry for loaded in group for entry in loaded.rejected if _key(entry) not in self._seen]

    def flush(self) -> None:
        """Writes the utterances that all processes have collected.

        Raises:
            RunError: On all processes, if more utterances than allowed cannot be read.
        """
        differing, new = rejected_everywhere(self._differing), rejected_everywhere(self._new)
        self._new, self._differing = [], []
        self._seen_differing.update(map(_key, differing))
        report_rejected(self._file, self._log, differing, are_used=True)
        if not new:
            return
        self._seen.update(map(_key, new))
        report_rejected(self._file, self._log, new)
        self._num_filtered += sum(entry.stage == "filter" for entry in new)
        self._num_silent += sum(SILENT in entry.reason for entry in new)
        num_unused = len(self._seen) - self._num_filtered
        if num_unused - self._num_silent > self._limit or num_unused > self._num_utterances // 2:
            raise RunError(
                f"{num_unused} utterances of {self._num_utterances} cannot be read or are silent, more than "
                f"training.limits.max_rejected ({self._limit}) or half of them; the last is {new[-1].location}: "
                f"{new[-1].reason}. {self._file.path} lists all of them; repair the files, remove the "
                "utterances from the manifest, or raise --training.limits.max-rejected"
            )


def report_data(setup: Setup, write: Callable[..., None]) -> None:
    """Reports how the data are read, and warns of characters, devices, audio and overlap, before training."""
    data = setup.experiment.data
    roles: tuple[tuple[Role, tuple[str, ...]], ...] = (("train", data.train), ("validation", data.validation))
    if shards := setup.data.train.shards:
        message = (
            f"{counted(len(shards), 'shard')}, read one after the other; tokenizer, buckets and "
            f"checks are of {counted(len(setup.data.sets.train), 'sampled item')}"
        )
        write("data", set="train", message=message)
    for role, paths in roles[1:] if shards else roles:
        for line in described(paths, role, ReadOptions(texts_may_lack=not setup.data.tokenizer.has_labels)):
            write("data", set=role, message=line)
    if message := about_crops(setup.data.train.index, data.crop_s):
        write("data", set="train", message=message)
    if message := about_long(setup.data.validation, has_losses=setup.data.for_losses is not None):
        write("data", set="validation", message=message)
    for name, removed in setup.data.removed.items():
        if message := about_removed(removed, name):
            write("warning", detector="removed_characters", set=name, share=removed.share, message=message)
    for name, message in about_round_trips(setup.data.round_trips, data.tokenizer).items():
        found = setup.data.round_trips[name]
        rates = {"wer": found.wer, "cer": found.cer}
        write("warning", detector="round_trip", set=name, texts=found.texts, lowest=rates, message=message)
    for message in other_devices(setup.experiment, setup.mesh):
        write("warning", detector="devices of the batches", message=message)
    for message in (line for check in setup.data.audio for line in check.lines()):
        write("warning", detector="audio", message=message)
    for message in setup.data.overlap.lines():
        write("warning", detector="overlap", message=message)


def report_filtered(rejections: Rejections, write: Callable[..., None], *, path: Path | None = None) -> None:
    """Reports the utterances of a set that are rejected before training, if there are any."""
    if rejections.utterances:
        write(
            "rejected",
            count=sum(rejections.utterances.values()),
            reasons=rejections.utterances,
            files=[each.location for each in rejections.entries[:3]],
            **({"path": path} if path else {}),
        )


def report_rejected(file: RejectedFile, log: EventLog, entries: Sequence[Rejected], *, are_used: bool = False) -> None:
    """Appends utterances that rejected.jsonl lacks, and writes an event with their number and reasons.

    With `are_used`, the utterances are used and have remarks on their audio; the event is then `differing`.
    """
    if is_main() and entries:
        before = file.reasons(are_differing=are_used)
        if new := list({_key(entry): entry for entry in entries if _key(entry) not in before}.values()):
            file.append(new)
            about = {"reason": new[0].reason} if are_used else {"reasons": Counter(each.reason for each in new)}
            log.write(
                "differing" if are_used else "rejected",
                count=len(new),
                files=[each.location for each in new[:3]],
                path=file.path,
                **about,
            )


def report_native(log: EventLog) -> None:
    """Writes a warning with new problems that native libraries, such as CUDA, report."""
    if is_main() and (message := native_problems()):
        log.write("warning", detector="native libraries", message=message)


def _key(rejected: Rejected) -> tuple[str, str]:
    """Returns id and location; neither is unique alone, because a file may have several utterances."""
    return rejected.id, rejected.location


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the smallest, mean and largest of the values of all processes, and the process with the largest."""
    return {
        "min": min(values),
        "mean": sum(values) / len(values),
        "max": max(values),
        "process": max(range(len(values)), key=values.__getitem__),
    }


class Reporter:
    """Accumulates the reports of updates and their batches, and writes train_step events with the means."""

    def __init__(self, setup: Setup, log: EventLog, *, loss_terms: Sequence[str]) -> None:
        self._setup, self._log, self._loss_terms = setup, log, loss_terms
        self.throughput = Throughput(num_devices=setup.mesh.size, num_warmup=setup.experiment.training.accumulate)
        self._reports: list[UpdateReport] = []
        self._shapes: list[list[dict[str, Any]]] = []
        """Descriptions of the batches of each report, for voided updates."""
        self._failed_in_a_row, self._num_counted, self._is_failing = 0, 0, False
        self._data_state: dict[str, Any] | None = None
        self._first_timed = 0
        """Index of the first report whose time counts."""

    def announce(self, update: int, group: Sequence[LoadedBatch]) -> None:
        """Writes a batch_start event before an update is computed."""
        shapes = [{name: value for name, value in self._shape(b).items() if name != "rows"} for b in group]
        epoch = self._setup.epoch(update + 1, group[-1].state)
        self._log.write("batch_start", update=update + 1, epoch=epoch, batches=shapes)

    def add(self, report: UpdateReport, group: Sequence[LoadedBatch]) -> None:
        """Adds an update that was dispatched, and its batches."""
        self._reports.append(report)
        self._shapes.append([self._shape(loaded) for loaded in group])
        self._data_state = group[-1].state
        scale, front_end = self._setup.data.train.index.scale, self._setup.model.front_end
        if self.throughput.is_warming_up:
            self._first_timed = len(self._reports)  # this report is added above
            jax.block_until_ready(report)  # The time of excluded updates must not count for the ones after them.
        for loaded in group:
            batch = loaded.batch
            rows = batch.weights > 0
            lengths = np.where(rows, batch.lengths, 0)
            processes = jax.process_count()  # estimate: the rows of the other processes are alike
            num_features = lengths if scale.of_features else front_end.output_length(lengths)
            labels = batch.tokens[np.arange(batch.tokens.shape[1]) < batch.token_lengths[:, None]]
            self.throughput.add(
                utterances=float(rows.sum()) * processes,
                audio_s=float(lengths.sum()) / scale.per_s * processes,
                padded_audio_s=batch.signal.shape[0] * batch.signal.shape[1] / scale.per_s * processes,
                frames=float(self._setup.model.output_length(lengths, of_features=scale.of_features).sum()) * processes,
                feature_values=float(num_features.sum()) * front_end.num_features * processes,
                tokens=float(len(labels)) * processes,
                letters=float(self._setup.data.tokenizer.num_letters[labels].sum()) * processes,
                loading_s=loaded.loading_s,
            )

    def wait(self, in_flight: int) -> None:
        """Blocks until at most `in_flight` updates are unfinished on the device."""
        for report in self._reports[self._num_counted : max(len(self._reports) - in_flight, 0)]:
            self._count(report)

    def has_failed(self) -> bool:
        """Returns whether training.limits.max_failed consecutive updates were not finite; `flush` then ends the run."""
        return self._failed_in_a_row >= self._setup.experiment.training.limits.max_failed

    def flush(self, *, update: int) -> None:
        """Writes an event with the means since the last call, up to this update.

        Raises:
            RunError: If limits.max_failed consecutive updates were not finite, or the loss scale fell below its floor.
        """
        if not self._reports:
            return
        with self.throughput.timed("device"):
            reports: list[Any] = jax.device_get(self._reports)
        first = update - len(reports)
        self._report_flushes(first)
        # Voided updates are counted but not part of the means, which would not be finite with them.
        applied = [report for report in reports if report.applied]
        means = {name: value.mean() for name, value in merge(report.sums for report in applied).items()}
        losses = {name: means.get(name, math.nan) for name in self._loss_terms}
        total = total_of(losses, self._setup.recipe.scales)
        scaling = {"loss_scale": float(reports[-1].loss_scale)} if self._setup.recipe.loss_scale else {}
        self.throughput.add_masked(
            sum(
                float(report.sums[f"{name}/loss"].weight)
                for name, head in self._setup.model.heads.items()
                for report in reports[self._first_timed :]
                if head.needs_mask
            )
        )
        self._log.write(
            "train_step",
            update=update,
            epoch=self._setup.epoch(update, self._data_state),
            losses={"total": total} | losses,
            metrics={name: mean for name, mean in means.items() if name not in losses} | reports[-1].scheduled,
            learning_rate=float(reports[-1].learning_rate),
            voided=update - int(reports[-1].updates),
            gradient_norm=float(np.mean([report.gradient_norm for report in applied])) if applied else math.nan,
            throughput=self.throughput.rates(),
            memory=devices.memory_in_use(),
            **scaling,
            **self._of_processes(),
        )
        report_native(self._log)
        self._save_voided(first, reports)
        self._warn(first, reports)
        for report in reports[self._num_counted :]:
            self._count(report)
        self._reports, self._shapes, self._num_counted, self._first_timed = [], [], 0, 0
        self.throughput.reset()
        self._check(reports)

    def _of_processes(self) -> dict[str, Any]:
        """Returns the field `processes` of the event, for which all processes exchange a message. None for one."""
        if jax.process_count() == 1:
            return {}
        spent = gathered({"loading_s": self.throughput.loading_s, "waiting_s": self.throughput.waiting_s})
        of = {name: spread([each[name] for each in spent]) for name in spent[0]}
        return {"processes": {"number": len(spent), **of}}

    def _count(self, report: UpdateReport) -> None:
        """Waits for an update and counts consecutive updates that are not finite."""
        self._failed_in_a_row = 0 if report.finite else self._failed_in_a_row + 1
        self._num_counted += 1

    def _shape(self, loaded: LoadedBatch) -> dict[str, Any]:
        batch, per_s = loaded.batch, self._setup.data.train.index.scale.per_s
        rows = batch.utterances[batch.weights > 0]
        return {
            "position": loaded.position,
            "shape": list(batch.signal.shape),
            "labels": batch.tokens.shape[1],
            "audio_s": round(float(batch.lengths[batch.weights > 0].sum()) / per_s, 2),
            "rows": rows.tolist(),
            "ids": list(loaded.ids),
        }

    def _report_flushes(self, first: int) -> None:
        """Writes an event for each update with fewer batches than the others, at the end of an epoch."""
        accumulate = self._setup.experiment.training.accumulate
        for update, shapes in enumerate(self._shapes, first + 1):
            if len(shapes) < accumulate:
                self._log.write("optimizer_flush", update=update, batches=len(shapes), accumulate=accumulate)

    def _save_voided(self, first: int, reports: Sequence[Any]) -> None:
        """Appends the batches of updates that were not finite to voided.jsonl."""
        found = [(n, report, self._shapes[n]) for n, report in enumerate(reports) if not report.finite]
        index = self._setup.data.train.index
        entries = [
            {
                "update": first + n + 1,
                "first_bad_position": int(report.bad_position),
                "gradient_norm": str(float(report.gradient_norm)),
                "losses": {name: str(report.sums[name].mean()) for name in self._loss_terms},
                "batches": [
                    {**shape, "ids": shape["ids"] or [index.utterances[row].id for row in shape["rows"]]}
                    for shape in shapes
                ],
            }
            for n, report, shapes in found
        ]
        together = gathered(entries)
        if is_main() and found:
            path = self._setup.folder / VOIDED
            append_lines(path, (json_text(entry) for entries in together for entry in entries))
            self._log.write(
                "voided",
                update=entries[-1]["update"],
                count=len(found),
                updates=[entry["update"] for entry in entries],
                path=path,
            )

    def _warn(self, first: int, reports: Sequence[Any]) -> None:
        failed = [first + n + 1 for n, report in enumerate(reports) if not report.finite]
        empty = [first + n + 1 for n, report in enumerate(reports) if report.finite and not report.applied]
        is_new, self._is_failing = bool(failed) and not self._is_failing, bool(failed)
        if is_new and not self._setup.recipe.loss_scale:  # with a loss scale, overflows are normal
            self._log.write(
                "warning",
                update=failed[0],
                detector="not finite",
                message=f"{len(failed)} of the last {len(reports)} updates had NaN or infinite values and changed "
                f"nothing; their batches are in {VOIDED}. Check the gradient norm before them and these recordings; "
                "lower the learning rate (--optim.schedule.peak-lr) or the clipping threshold (--optim.clip-at)",
            )
        if empty:
            self._log.write(
                "warning",
                update=empty[0],
                detector="nothing to count",
                message=f"{len(empty)} of the last {len(reports)} updates were empty and changed nothing: none of "
                "their recordings could be read, or all have more labels than fit their frames",
            )

    def _check(self, reports: Sequence[Any]) -> None:
        limit, scale = self._setup.experiment.training.limits.max_failed, self._setup.recipe.loss_scale
        where = self._setup.folder / VOIDED
        if scale and float(reports[-1].loss_scale) < scale.floor:
            raise RunError(
                f"the loss scale fell to {float(reports[-1].loss_scale):.3g}, below training.loss_scale.floor "
                f"({scale.floor:g}): gradients are not finite at any scale, therefore the range of float16 is not the "
                f"cause. The batches are in {where}; lower the learning rate (--optim.schedule.peak-lr), or use "
                "--training.precision bf16, in a new run with --fresh True"
            )
        if self._failed_in_a_row >= limit:
            raise RunError(
                f"the last {self._failed_in_a_row} updates were not finite (limits.max_failed is {limit}); all "
                f"checkpoints are older. {where} lists the batches of these updates: if they are always the same, "
                "check their recordings and texts; otherwise lower the learning rate (--optim.schedule.peak-lr) in a "
                "new run with --fresh True"
            )


def announce(setup: Setup, log: EventLog, shapes: InitialState, *, changed: list[tuple[str, Any, Any]] | None) -> None:
    """Writes the event of the start, and warnings about the data and the settings, of which `changed` are new."""
    index, plan = setup.data.train.index, setup.data.train.plan
    training = setup.experiment.training
    log.write(
        "run_start",
        run=setup.experiment.name,
        num_updates=setup.num_updates,
        num_parameters=num_elements(shapes.state.params),
        num_epochs=round(setup.num_updates / setup.updates_per_epoch, 2),
        num_devices=setup.mesh.size,
        device=setup.mesh.devices.flat[0].device_kind,
        on=devices.description(),
        versions=library_versions(),
        changed=[{"setting": name, "old": old, "new": new} for name, old, new in changed or ()],
        utterances=index.num_utterances,
        hours=index.hours,
        vocabulary=setup.data.tokenizer.vocab_size,
        padding_share=plan.padding_share,
        data=setup.data.train.fingerprint(),
    )
    for name, old, new in changed or ():
        log.write("setting_changed", setting=name, old=old, new=new)
        if name == "training.split" and jax.tree.leaves(shapes.state.batch_stats):
            log.write("warning", detector="batch norm", message=SPLIT_CHANGED.format(training.split))
    each = setup.layout.num_devices * training.split
    if more := setup.padding_rows:
        log.write(
            "warning",
            detector="padding rows",
            message=f"padding rows add {100 * more:.0f} % to the rows of the "
            f"batches, because the rows of some are not a multiple of {each} (devices × training.split); in a new run, "
            f"data.batching.row_multiple {each} avoids them",
        )
    report_data(setup, log.write)
    for message in other_product(setup.experiment, setup.mesh.size):
        log.write("warning", detector="rows of an update", message=message)
    if not (setup.folder / SMOKE).is_file():  # smoke runs end before any warm-up
        for message in short_run(setup.experiment.optim.schedule, setup.length):
            log.write("warning", detector="warm-up", message=message)
    if changed is None:
        report_filtered(setup.data.train.rejections, log.write, path=setup.folder / REJECTED)
