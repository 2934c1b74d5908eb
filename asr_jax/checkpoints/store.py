"""Checkpoints of a run: written in the background, whole or not at all; newest, best and milestones are kept."""

import functools
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from logging import LogRecord
from logging import getLogger as get_logger
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy as preservation

from asr_jax.checkpoints.integrity import damage, seal
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.processes import is_main, on_main
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.metrics.measure import measure_of


def _is_news(utterance: LogRecord) -> bool:
    """False for the tracebacks that Orbax logs of a failed save, seven times (`wait` raises what they say), and for its
    words that a handler was replaced, a checkpoint saved without a measure, or an item read alone, all meant.
    """
    known = ("Type handler registry", "did not provide metrics", "Metadata file does not exist")
    return utterance.exc_info is None and not any(part in utterance.getMessage() for part in known)


logging.get_absl_logger().addFilter(_is_news)
get_logger("asyncio").setLevel("CRITICAL")  # the writes that were under way when one of them failed
# State is the same on every device and the first one writes it. Orbax would have each write a slice, which compiles a
# program for every shape in the middle of a run.
ocp.type_handlers.register_type_handler(
    jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False), override=True
)

UNFINISHED = ".orbax-checkpoint-tmp"
METRICS = "metrics/metrics"
OTHERS = 1e6
"""What is added to measures that do not count: more than any can be."""
# Folders beside that of the checkpoints.
REFUSED, REPLACED = "refused", "replaced"


class Checkpoints:
    """Checkpoints by number of updates, each with the items `state`, `average` and `meta`.

    `state` is what training continues from, `average` the averaged weights that evaluation uses, `meta` JSON: where
    the data goes on, the experiment, the summary. The best has the lowest measure of those of one decoding: the
    validation WER or, of runs that find no texts, the validation loss.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        milestones: tuple[int, ...] = (),
        decoding: str = "",
        head: str = "",
    ) -> None:
        """`decoding`: the digest of what finds the error rates that are saved, empty where none are; those of others
        come behind them.
        """
        rank = functools.partial(_rank, decoding=decoding)
        policies: list[Any] = [preservation.LatestN(keep_last)]
        if milestones:
            policies.append(preservation.CustomSteps(list(milestones)))
        if keep_best:
            policies.append(
                preservation.BestN(
                    get_metric_fn=rank, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
                )
            )
        self.folder, self._found_by = folder, {"decoding": decoding, "head": head}
        self._saving: int | None = None
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preservation.AnyPreservationPolicy(policies),
                best_fn=rank,
                best_mode="min",
                enable_async_checkpointing=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
                cleanup_tmp_directories=True,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        sys.unraisablehook = _report_unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except RunError:
            if error is None:  # else what went wrong first is what a person should read
                raise
        finally:
            self._manager.close()
            sys.unraisablehook = sys.__unraisablehook__

    def wait(self) -> None:
        """Returns when all that was saved is written.

        Raises: RunError where it could not be.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:  # Orbax's and TensorStore's own kinds, and those of the file system
            raise RunError(
                f"checkpoint {self.path(self._saving or 0)} could not be written: {_reason(error)}; the ones before "
                "it are whole: mend what is named (make room on the disk) and give the same command again"
            ) from error

    @property
    def latest(self) -> int | None:
        """Number of updates of the newest checkpoint."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """Number of updates of the checkpoint with the lowest measure."""
        return self._manager.best_step()

    def path(self, updates: int) -> Path:
        return self.folder / str(updates)

    def finished(self) -> int | None:
        """Number of updates of the checkpoint that was saved last, the first time that this is asked after it was
        written; None otherwise.

        Raises: RunError where it could not be written.
        """
        if self._saving is None or self._manager.is_saving_in_progress():
            return None
        self.wait()
        done, self._saving = self._saving, None
        if is_main():
            shutil.rmtree(self.folder.parent / REPLACED, ignore_errors=True)
        return done

    def save(
        self, updates: int, *, state: Tree, average: Tree, meta: dict[str, Any], measured: dict[str, Any] | None = None
    ) -> None:
        """Begins to write and returns once the arrays are copied; the caller may then overwrite them.

        `measured`: by its name, the one measure of the validation; without it the checkpoint is never the best.

        Raises: RunError where the checkpoint before could not be written.
        """
        self.wait()
        if updates in self._manager.all_steps():  # saved without a validation, which has come now
            on_main(lambda: _move(self.path(updates), self.folder.parent / REPLACED))
            self._manager.reload()
        self._saving = updates
        self._manager.save(
            updates,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                average=ocp.args.StandardSave(average),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics=measured and measured | self._found_by,
        )

    def restore(self, updates: int, *, state: Tree, average: Tree) -> tuple[Tree, Tree, dict[str, Any]]:
        """State, average and meta of a checkpoint, in the shapes and shardings of the abstract trees given.

        Raises: UserError where it does not fit them.
        """
        _check_fits(self.path(updates) / "state", state)
        restored = self._manager.restore(
            updates,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(state),
                average=ocp.args.StandardRestore(average),
                meta=ocp.args.JsonRestore(),
            ),
        )
        return restored["state"], restored["average"], restored["meta"]

    def _seal(self) -> None:
        """Orbax calls it when all files are written, before the rename that makes them a checkpoint."""
        for folder in self.folder.glob(f"{self._saving}{UNFINISHED}*"):
            seal(folder)


def _report_unraisable(unraisable: Any) -> None:
    """Passes over what threads of TensorStore print when the first write that failed has ended the save for all."""
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


def refuse_damaged(folder: Path) -> list[str]:
    """Moves the newest checkpoints, as long as they are not as they were written, to `refused` beside `folder`, and
    older ones whose error rate is not: it says which is the best.

    Gives a line for each, with its reason. To be called before `Checkpoints` opens the folder.
    Raises: RunError where none is left, before anything is moved: to begin anew is a person's decision.
    """
    for replaced in (folder.parent / REPLACED).glob("*"):  # of a save that did not end
        if not (folder / replaced.name).exists():
            replaced.rename(folder / replaced.name)
    wrong: dict[Path, str] = {}
    whole = False
    for updates in sorted(_numbers(folder), reverse=True):
        reason = damage(folder / str(updates), METRICS if whole else "")
        if reason:
            wrong[folder / str(updates)] = reason
        whole = whole or not reason
    lines = [f"checkpoint {path} is refused: {reason}" for path, reason in wrong.items()]
    if lines and not whole:
        raise RunError("\n".join(lines) + "\nno whole checkpoint is left; --fresh True starts anew beside this run")
    places = [_move(path, folder.parent / REFUSED) for path in wrong]
    return [f"{line}; it lies in {place} now" for line, place in zip(lines, places, strict=True)]


def checkpoints_in(folder: Path) -> list[int]:
    """Numbers of updates of the checkpoints, rising."""
    return sorted(_numbers(folder))


def newest(folder: Path) -> int:
    """Number of updates of the newest checkpoint, 0 where there is none."""
    return max(_numbers(folder), default=0)


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def _move(path: Path, to: Path) -> str:
    """Moves a folder into another one, under a free name."""
    to.mkdir(exist_ok=True)
    number, free = 2, to / path.name
    while free.exists():
        free, number = to / f"{path.name}-{number}", number + 1
    path.rename(free)
    return str(free)


def _reason(error: BaseException) -> str:
    """What the operating system said, or the first line of the first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if code := re.search(r"os_error_code='(\d+)'", str(error)):  # TensorStore's way of saying it
        return os.strerror(int(code[1]))
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _rank(metrics: Mapping[str, Any], *, decoding: str) -> float:
    """The lowest is the best: error rates of this decoding by themselves, before those of others; what is no number
    comes last.
    """
    is_other = metrics.get("decoding", decoding) != decoding
    value = float(metrics[measure_of(metrics)])
    return value + OTHERS * is_other if math.isfinite(value) else math.inf


def checkpoint_to_evaluate(folder: Path, updates: int | None = None) -> int:
    """The best checkpoint of a run by its measure, of those that the decoding found that found the last of them; or the
    one asked for.

    Raises: UserError where there is none, or not that one, or where it is damaged.
    """
    known = sorted(_numbers(folder))
    if not known:
        raise UserError(
            f"{folder.parent} has no finished checkpoint: the run's first validation is still to come; continue the run"
        )
    if updates is not None and updates not in known:
        raise UserError(f"{folder} has no checkpoint {updates}: expected one of {', '.join(map(str, known))}")
    candidates = known if updates is None else [updates]
    wrong = {number: damage(folder / str(number), METRICS) for number in candidates}
    found = {number: _sealed_metrics(folder / str(number)) for number in candidates if not wrong[number]}
    metrics = {number: each for number, each in found.items() if each}
    decoding = metrics[max(metrics)].get("decoding", "") if metrics else ""
    rates = {number: _rank(each, decoding=decoding) for number, each in metrics.items()}
    chosen = min(candidates, key=lambda number: (not wrong[number], rates.get(number, math.inf), -number))
    if reason := wrong[chosen] or damage(folder / str(chosen)):
        others = [str(number) for number in reversed(known) if number != chosen and not damage(folder / str(number))]
        mend = f"--checkpoint takes another: {', '.join(others)}" if others else "no other one is whole"
        raise UserError(f"checkpoint {folder / str(chosen)} is refused: {reason}; {mend}")
    return chosen


def _sealed_metrics(checkpoint: Path) -> dict[str, Any]:
    """Of a checkpoint that is not damaged; none where it was saved without a validation."""
    path = checkpoint / METRICS
    metrics: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return metrics


def restore_item(folder: Path, updates: int, name: str, abstract: Tree, *, is_part: bool = False) -> Tree:
    """One item of a checkpoint, such as `average`, in the shapes and shardings of an abstract tree.

    Args:
        is_part: whether the item may hold more than the tree names; only what the tree names is read.

    Raises: UserError if it does not fit the tree.
    """
    item = folder / str(updates) / name
    _check_fits(item, abstract, is_part=is_part)
    if not is_part:
        with ocp.StandardCheckpointer() as reader:
            return reader.restore(item.absolute(), abstract)
    arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(
            item.absolute(), args=ocp.args.PyTreeRestore(abstract, restore_args=arguments, partial_restore=True)
        )


def _check_fits(item: Path, abstract: Tree, *, is_part: bool = False) -> None:
    with ocp.StandardCheckpointer() as reader:
        there = {name: leaf.shape for name, leaf in flatten(reader.metadata(item.absolute()).item_metadata).items()}
    wanted = {name: leaf.shape for name, leaf in flatten(abstract).items()}
    names = wanted.keys() if is_part else there.keys() | wanted.keys()
    wrong = [name for name in sorted(names) if there.get(name) != wanted.get(name)]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"checkpoint {item.parent} does not fit the model: {first} is {there.get(first, 'not there')} in it and "
            f"{wanted.get(first, 'not there')} in the model, one of {len(wrong)} such parameters. It was made with "
            "another experiment or another vocabulary: take the experiment.json and tokenizer that belong to it"
        )


def restore_meta(folder: Path, updates: int) -> dict[str, Any]:
    """The meta item of a checkpoint, read without Orbax, in which all processes would have to take part."""
    meta: dict[str, Any] = json.loads((folder / str(updates) / "meta" / "metadata").read_text())
    return meta
