"""Checkpoints of a run. They are written atomically in the background; the newest, best and milestones are kept."""

import functools
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from logging import LogRecord
from logging import getLogger as get_logger
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy as preservation

from asr_jax.checkpoints.integrity import damage, seal
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.processes import is_main, on_main
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.core.run_folder import CHECKPOINTS
from asr_jax.core.text_files import read_text
from asr_jax.metrics.measure import ALL, Measure, measure_of


def _is_news(record: LogRecord) -> bool:
    """Returns False for redundant log records of Orbax.

    These are the seven tracebacks of a failed save, whose error `wait` raises, and warnings about a replaced type
    handler, a checkpoint without a measure, and an item that is read without the others, which are all intended.
    """
    known = ("Type handler registry", "did not provide metrics", "Metadata file does not exist")
    return record.exc_info is None and not any(part in record.getMessage() for part in known)


logging.get_absl_logger().addFilter(_is_news)
get_logger("asyncio").setLevel("CRITICAL")  # hides the other writes of a failed save
# A replicated state is written by the first device. By default, Orbax lets every device write a slice, which compiles a
# program for each shape during the run.
ocp.type_handlers.register_type_handler(
    jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False), override=True
)

UNFINISHED = ".orbax-checkpoint-tmp"
METRICS = "metrics/metrics"
Shapes = dict[str, tuple[int, ...]]
"""Shapes of arrays by their path in a tree."""
OTHERS = 1e6
"""Added to measures of other decodings or validation sets, to rank them last; larger than any measure."""
# Folders next to the folder of checkpoints.
REFUSED, REPLACED = "refused", "replaced"
PLAIN = re.compile(r"(?!/(gs|s3|az|hf)/)[\w./+=,@:%~ -]*", re.ASCII)
"""Paths that Orbax and TensorStore take literally, not as patterns or addresses of a storage."""
_links: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of the links of `_plain`, which are removed at the end of the process."""


class _Manager(ocp.CheckpointManager):
    """Stores the error of a save on this process as soon as it occurs.

    Orbax raises it after a barrier, at which this process would wait for the others, and they for it, until a timeout
    of 20 minutes.
    """

    error: Exception | None = None
    """Error of the last save on this process, and None if there is none."""

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except Exception as error:
            self.error = error
            raise


class Checkpoints:
    """Checkpoints by number of updates, each with the items `state`, `average` and `meta`.

    `state` is the training state, `average` the averaged parameters that evaluation uses, and `meta` JSON with the
    position in the data, the experiment and the summary. The best checkpoint has the lowest measure of the current
    decoding: an error rate of the validation or, without a recognising head, its loss (`metrics.measure`). With several
    validation sets, it is that of `training.saving.best_of`.
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
        best_of: str = ALL,
        measure: Measure | None = None,
    ) -> None:
        """Opens or creates the folder of checkpoints.

        Args:
            keep_last: Number of newest checkpoints to keep.
            keep_best: Number of checkpoints with the lowest measure to keep.
            milestones: Updates whose checkpoints are never deleted.
            decoding: Digest of the decoding of the error rates that are saved; empty if there are none. Error rates of
                other decodings are ranked after them.
            head: Name of the primary head; empty without a recognising head.
            best_of: Validation set of the measures, or all or mean. Measures of others are ranked after them.
            measure: Name of the measure. Others are ranked after it. None: any.
        """
        rank = functools.partial(_rank, decoding=decoding, best_of=best_of, measure=measure)
        policies: list[Any] = [preservation.LatestN(keep_last)]
        if milestones:
            policies.append(preservation.CustomSteps(list(milestones)))
        if keep_best:
            policies.append(
                preservation.BestN(
                    get_metric_fn=rank, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
                )
            )
        self.folder, self._found_by = folder, {"decoding": decoding, "head": head, "best_of": best_of}
        self._saving: int | None = None
        self._saved = dict[str, Shapes]()
        """Shapes of the arrays of each item of the last checkpoint."""
        self._is_abandoned = False
        folder.mkdir(parents=True, exist_ok=True)
        self._manager = _Manager(
            _plain(folder),
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except RunError:
            if error is None:  # otherwise the first error is the one to report
                raise
        finally:
            if not self._is_abandoned:  # otherwise Orbax waits for the other processes
                self._manager.close()
            sys.unraisablehook = sys.__unraisablehook__

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            RunError: If it could not be written.
        """
        if self._is_abandoned:
            return
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:  # errors of Orbax, TensorStore and the file system
            raise self._not_written(error) from error

    def abandon(self) -> None:
        """Gives up the checkpoint that is being written, because this process or another one cannot write its part."""
        self._is_abandoned = True

    def _not_written(self, error: Exception) -> RunError:
        return RunError(
            f"checkpoint {self.path(self._saving or 0)} could not be written: {_reason(error)}; earlier "
            "checkpoints are intact: remove the cause (for example, free disk space) and run the same command again"
        )

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saving is not None and self._manager.is_saving_in_progress()

    @property
    def latest(self) -> int | None:
        """Number of updates of the newest checkpoint; None if there is none."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """Number of updates of the checkpoint with the lowest measure; None if there is none."""
        return self._manager.best_step()

    def path(self, updates: int) -> Path:
        return self.folder / str(updates)

    def finished(self) -> int | None:
        """Returns the number of updates of the last checkpoint, once, after it is written; otherwise None.

        Raises:
            RunError: If this process could not write its part of the checkpoint.
        """
        if self._saving is None:
            return None
        if jax.process_count() > 1 and self._manager.error:
            raise self._not_written(self._manager.error)
        if self.is_saving:
            return None
        self.wait()
        done, self._saving = self._saving, None
        if is_main():
            shutil.rmtree(self.folder.parent / REPLACED, ignore_errors=True)
        return done

    def save(
        self, updates: int, *, state: Tree, average: Tree, meta: dict[str, Any], measured: dict[str, Any] | None = None
    ) -> None:
        """Copies the arrays and starts to write a checkpoint. The caller may overwrite the arrays afterwards.

        Args:
            measured: The measure of the validation by its name. None: the checkpoint cannot be the best.

        Raises:
            RunError: If the previous checkpoint could not be written.
        """
        self.wait()
        if updates in self._manager.all_steps():  # it was saved before its validation
            on_main(lambda: _move(self.path(updates), self.folder.parent / REPLACED))
            self._manager.reload()
        self._saving, self._manager.error = updates, None
        self._saved = {"state": _shapes_of(state), "average": _shapes_of(average)}
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
        """Returns state, averaged parameters and meta of a checkpoint, for trees of `jax.ShapeDtypeStruct`.

        Raises:
            UserError: If the checkpoint does not fit the trees.
        """
        trees = (restore_item(self.folder, updates, name, of) for name, of in (("state", state), ("average", average)))
        return *trees, restore_meta(self.folder, updates)

    def _seal(self) -> None:
        """Reads back and seals the checkpoint. Orbax calls this when all files are written, before it renames them."""
        for folder in self.folder.glob(f"{self._saving}{UNFINISHED}*"):
            for name, shapes in self._saved.items():
                _read_back(folder, name, shapes)
            seal(folder)


def _plain(folder: Path) -> Path:
    """Returns a path for Orbax: that of the folder, or of a link to it if Orbax would not take it literally.

    Orbax searches with glob patterns that begin with the path, so that it finds none of its own files in `run [2]`. It
    reads /s3/… as an address of a storage, and TensorStore reads UTF-8 only.

    Raises:
        UserError: If the folder of temporary files has such a path, too.
    """
    return _plain_of(folder.absolute())


@functools.cache
def _plain_of(folder: Path) -> Path:
    if PLAIN.fullmatch(str(folder)):
        return folder
    place = tempfile.TemporaryDirectory(prefix="asr_jax-")
    if not PLAIN.fullmatch(place.name):
        raise UserError(
            f"checkpoints cannot be written to {folder}, nor through a link in {place.name}: expected a path of "
            "letters, digits and ./+=,@:%~-; choose another --run-dir, or another TMPDIR"
        )
    _links.append(place)
    link = Path(place.name, CHECKPOINTS)
    link.symlink_to(folder)
    return link


def _shapes_of(tree: Tree) -> Shapes:
    return {name: tuple(leaf.shape) for name, leaf in flatten(tree).items()}


def _written(folder: Path, updates: str, name: str) -> Shapes:
    """Returns the shapes of the arrays of an item on disk; empty if Orbax cannot read it."""
    try:
        return _shapes_of(ocp.PyTreeCheckpointHandler().metadata(_plain(folder) / updates / name))
    except (OSError, NotImplementedError, TypeError, ValueError):
        return {}


def _read_back(checkpoint: Path, name: str, shapes: Shapes) -> None:
    """Checks that an item that was written has the arrays that were saved."""
    there = _written(checkpoint.parent, checkpoint.name, name)
    if there != shapes:
        wrong = [each for each in sorted(shapes.keys() | there.keys()) if shapes.get(each) != there.get(each)]
        raise RunError(
            f"{len(wrong)} of {len(shapes)} arrays of {checkpoint / name} cannot be read back, such as {wrong[0]}"
        )


def _report_unraisable(unraisable: Any) -> None:
    """Hides an error that threads of TensorStore print after another write has failed."""
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


def refuse_damaged(folder: Path) -> list[str]:
    """Moves damaged checkpoints to the folder `refused` next to `folder`. Call it before opening `Checkpoints`.

    Starting from the newest checkpoint, all files are checked until an intact checkpoint is found. Of older ones, only
    the measure is checked, which determines the best checkpoint.

    Returns:
        A message with the reason for each checkpoint that was moved.

    Raises:
        RunError: If no checkpoint is intact. Nothing is moved, because a user must decide to start again.
    """
    for replaced in (folder.parent / REPLACED).glob("*"):  # from a save that did not finish
        if not (folder / replaced.name).exists():
            replaced.rename(folder / replaced.name)
    wrong: dict[Path, str] = {}
    whole = False
    for updates in reversed(checkpoints_in(folder)):
        reason = damage(folder / str(updates), METRICS if whole else "")
        if reason:
            wrong[folder / str(updates)] = reason
        whole = whole or not reason
    lines = [f"checkpoint {path} is refused: {reason}" for path, reason in wrong.items()]
    if lines and not whole:
        raise RunError("\n".join(lines) + "\nno intact checkpoint is left; start a new run with --fresh True")
    places = [_move(path, folder.parent / REFUSED) for path in wrong]
    return [f"{line}; it was moved to {place}" for line, place in zip(lines, places, strict=True)]


def checkpoints_in(folder: Path) -> list[int]:
    """Returns the numbers of updates of all checkpoints, in ascending order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def newest(folder: Path) -> int:
    """Returns the number of updates of the newest checkpoint; 0 if there is none."""
    return max(checkpoints_in(folder), default=0)


def _move(path: Path, to: Path) -> str:
    """Moves a folder into another folder under an unused name and returns its path."""
    to.mkdir(exist_ok=True)
    number, free = 2, to / path.name
    while free.exists():
        free, number = to / f"{path.name}-{number}", number + 1
    path.rename(free)
    return str(free)


def _reason(error: BaseException) -> str:
    """Returns the message of the operating system, or the first line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if code := re.search(r"os_error_code='(\d+)'", str(error)):  # an error of TensorStore
        return os.strerror(int(code[1]))
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _rank(metrics: Mapping[str, Any], *, decoding: str, best_of: str, measure: Measure | None) -> float:
    """Returns the rank of a checkpoint by its measure; the lowest rank is the best.

    Measures of another kind, decoding or validation set are ranked after the requested measures. Values that are
    not finite are last.
    """
    own = measure_of(metrics)
    is_other = metrics.get("decoding", decoding) != decoding or metrics.get("best_of", ALL) != best_of
    is_other |= measure is not None and own != measure
    value = float(metrics[own])
    return value + OTHERS * is_other if math.isfinite(value) else math.inf


def checkpoint_to_evaluate(folder: Path, updates: int | None = None) -> int:
    """Returns the best checkpoint by its measure, or checks the requested one.

    Measures of other decodings or validation sets than those of the newest measured checkpoint are ranked last.

    Args:
        updates: Number of updates of the requested checkpoint. None: the best one.

    Raises:
        UserError: If there is no such checkpoint, or it is damaged.
    """
    known = checkpoints_in(folder)
    if not known:
        raise UserError(
            f"{folder.parent} has no complete checkpoint: its first validation is not done yet; continue the run"
        )
    if updates is not None and updates not in known:
        raise UserError(f"{folder} has no checkpoint {updates}: expected one of {', '.join(map(str, known))}")
    candidates = known if updates is None else [updates]
    wrong = {number: damage(folder / str(number), METRICS) for number in candidates}
    found = {number: _sealed_metrics(folder / str(number)) for number in candidates if not wrong[number]}
    metrics = {number: each for number, each in found.items() if each}
    newest_of = metrics[max(metrics)] if metrics else {}
    decoding, best_of = newest_of.get("decoding", ""), newest_of.get("best_of", ALL)
    of_newest = measure_of(newest_of) if newest_of else None
    rank = functools.partial(_rank, decoding=decoding, best_of=best_of, measure=of_newest)
    rates = {number: rank(each) for number, each in metrics.items()}
    chosen = min(candidates, key=lambda number: (not wrong[number], rates.get(number, math.inf), -number))
    if reason := wrong[chosen] or damage(folder / str(chosen)):
        others = [str(number) for number in reversed(known) if number != chosen and not damage(folder / str(number))]
        fix = (
            f"use another one (--checkpoint N, or RUN/checkpoints/N): {', '.join(others)}"
            if others
            else "no other checkpoint is intact"
        )
        raise UserError(
            f"checkpoint {folder / str(chosen)} is refused: {reason}; {fix}. When training resumes, damaged "
            f"checkpoints are moved to {REFUSED}/"
        )
    return chosen


def _sealed_metrics(checkpoint: Path) -> dict[str, Any]:
    """Returns the measure of an intact checkpoint; empty if it was saved without a validation."""
    path = checkpoint / METRICS
    metrics: dict[str, Any] = json.loads(read_text(path)) if path.exists() else {}
    return metrics


def save_weights_alone(folder: Path, updates: int, weights: Tree, meta: dict[str, Any]) -> None:
    """Writes a sealed checkpoint without a training state, with which a run cannot continue."""
    items = ocp.args.Composite(average=ocp.args.StandardSave(weights), meta=ocp.args.JsonSave(meta))
    folder.mkdir(parents=True, exist_ok=True)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
        writer.save(_plain(folder) / str(updates), args=items)
    _read_back(folder / str(updates), "average", _shapes_of(weights))
    seal(folder / str(updates))


def replace_average(folder: Path, updates: int, weights: Tree) -> None:
    """Replaces the averaged parameters of a checkpoint, removes the measure of the former ones, and seals it."""
    checkpoint = folder / str(updates)
    shutil.rmtree(checkpoint / "average")
    shutil.rmtree(checkpoint / METRICS.partition("/")[0], ignore_errors=True)
    with ocp.StandardCheckpointer() as writer:
        writer.save(_plain(folder) / str(updates) / "average", weights)
    _read_back(checkpoint, "average", _shapes_of(weights))
    seal(checkpoint)


def has_state(folder: Path, updates: int) -> bool:
    """Returns whether a checkpoint has a training state, without which a run cannot continue."""
    return (folder / str(updates) / "state").is_dir()


def restore_item(folder: Path, updates: int, name: str, abstract: Tree, *, is_part: bool = False) -> Tree:
    """Restores one item of a checkpoint.

    Args:
        name: Name of the item, such as `average`.
        abstract: Tree of `jax.ShapeDtypeStruct` with shapes and shardings.
        is_part: Whether the item may contain arrays that `abstract` lacks. They are not read.

    Raises:
        UserError: If the item does not fit the tree.
    """
    item = _plain(folder) / str(updates) / name
    _check_fits(folder, updates, name, abstract, is_part=is_part)
    if not is_part:
        with ocp.StandardCheckpointer() as reader:
            return reader.restore(item, abstract)
    arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(item, args=ocp.args.PyTreeRestore(abstract, restore_args=arguments, partial_restore=True))


def _check_fits(folder: Path, updates: int, name: str, abstract: Tree, *, is_part: bool = False) -> None:
    there, wanted = _written(folder, str(updates), name), _shapes_of(abstract)
    names = wanted.keys() if is_part else there.keys() | wanted.keys()
    wrong = [name for name in sorted(names) if there.get(name) != wanted.get(name)]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"checkpoint {folder / str(updates)} does not fit the model: the shape of {first} is "
            f"{there.get(first, 'missing')} in the checkpoint and {wanted.get(first, 'missing')} in the model "
            f"({len(wrong)} differ). It is from another experiment or vocabulary: use the experiment.json and "
            "tokenizer of its run"
        )


def restore_meta(folder: Path, updates: int) -> dict[str, Any]:
    """Returns the meta item of a checkpoint. It is read without Orbax, which all processes would have to call."""
    meta: dict[str, Any] = json.loads(read_text(folder / str(updates) / "meta" / "metadata"))
    return meta
