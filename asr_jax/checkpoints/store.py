"""Checkpoints of a run: written in the background, whole or not at all; newest, best and milestones are kept."""

from pathlib import Path
from types import TracebackType
from typing import Any

import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy as preservation

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree


class Checkpoints:
    """Checkpoints by number of updates, each with the items `state`, `average` and `meta`.

    `state` is what training continues from, `average` the averaged weights that evaluation uses, `meta` JSON: where
    the data goes on, the experiment, the summary. The best has the lowest validation WER.
    """

    def __init__(
        self, folder: Path, *, keep_last: int = 2, keep_best: int = 1, milestones: tuple[int, ...] = ()
    ) -> None:
        policies: list[Any] = [preservation.LatestN(keep_last)]
        if milestones:
            policies.append(preservation.CustomSteps(list(milestones)))
        if keep_best:
            policies.append(
                preservation.BestN(
                    get_metric_fn=_wer, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
                )
            )
        self.folder = folder
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preservation.AnyPreservationPolicy(policies),
                best_fn=_wer,
                best_mode="min",
                enable_async_checkpointing=True,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()
        self._manager.close()

    def wait(self) -> None:
        """Returns when all that was saved is written."""
        self._manager.wait_until_finished()

    @property
    def latest(self) -> int | None:
        """Number of updates of the newest checkpoint."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """Number of updates of the checkpoint with the lowest validation WER."""
        return self._manager.best_step()

    @property
    def best_wer(self) -> float | None:
        """Validation WER of the best checkpoint."""
        best = self.best
        metrics = None if best is None else self._manager.metrics(best)
        return None if metrics is None else float(metrics["wer"])

    def path(self, updates: int) -> Path:
        return self.folder / str(updates)

    def save(self, updates: int, *, state: Tree, average: Tree, meta: dict[str, Any], wer: float) -> None:
        """Begins to write and returns once the arrays are copied; the caller may then overwrite them."""
        self._manager.save(
            updates,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                average=ocp.args.StandardSave(average),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics={"wer": wer},
        )

    def restore(self, updates: int, *, state: Tree, average: Tree) -> tuple[Tree, Tree, dict[str, Any]]:
        """State, average and meta of a checkpoint, in the shapes and shardings of the abstract trees given."""
        restored = self._manager.restore(
            updates,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(state),
                average=ocp.args.StandardRestore(average),
                meta=ocp.args.JsonRestore(),
            ),
        )
        return restored["state"], restored["average"], restored["meta"]

    def meta(self, updates: int) -> dict[str, Any]:
        return self._manager.restore(updates, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]


def _wer(metrics: dict[str, float]) -> float:
    return metrics["wer"]


def checkpoint_to_evaluate(folder: Path, updates: int | None = None) -> int:
    """The best checkpoint of a run by validation WER, or the one asked for.

    Raises: UserError where there is none, or not that one.
    """
    if not folder.is_dir():
        raise UserError(f"{folder.parent} has no checkpoints: the run's first validation is still to come")
    with _reader(folder) as manager:
        known = sorted(manager.all_steps())
        if not known:
            raise UserError(f"{folder} holds no finished checkpoint: train longer, or continue the run")
        if updates is not None and updates not in known:
            raise UserError(f"{folder} has no checkpoint {updates}: expected one of {', '.join(map(str, known))}")
        best = manager.best_step()
        return updates if updates is not None else known[-1] if best is None else best


def restore_average(folder: Path, updates: int, abstract: Tree) -> Tree:
    """The averaged weights of a checkpoint alone, in the shapes and shardings of an abstract tree."""
    with _reader(folder) as manager:
        return manager.restore(updates, args=ocp.args.Composite(average=ocp.args.StandardRestore(abstract)))["average"]


def _reader(folder: Path) -> ocp.CheckpointManager:
    logging.set_verbosity(logging.ERROR)  # it warns of what read_only implies
    options = ocp.CheckpointManagerOptions(read_only=True, best_fn=_wer, best_mode="min")
    return ocp.CheckpointManager(folder.absolute(), options=options)
