"""Smoke run: twenty updates with one batch shape, which do everything that a run does, in a folder of their own."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.processes import on_main
from asr_jax.core.run_folder import EVENTS, LOCK, SMOKE
from asr_jax.data.batching.batching import Batching
from asr_jax.metrics.measure import deciding_text
from asr_jax.observe.events import read_events
from asr_jax.pretrained.hub import Upload
from asr_jax.training import loop
from asr_jax.training.run import held, is_checkpoint

SUFFIX = "-smoke"
"""Suffix of the name and of the folder of a smoke run."""
NUM_UPDATES, NUM_UTTERANCES, NUM_VALIDATED = 20, 50, 8
BATCH_SECONDS = 20.0


def smoke_run(experiment: Experiment) -> list[str]:
    """Trains the smoke run of an experiment. It replaces the earlier smoke run in its folder.

    Returns:
        Lines for the user: the duration, the loss and the error rate.

    Raises:
        UserError: If the folder of the smoke run has other files, or as `training.loop.train`.
        Stopped, RunError: As `training.loop.train`.
    """
    began_s, small = time.monotonic(), smoke_of(experiment)
    on_main(lambda: clear(small.folder))
    summary = loop.train(small)
    return cast(list[str], on_main(lambda: _lines(small.folder, summary, seconds=time.monotonic() - began_s)))


def _lines(folder: Path, summary: dict[str, Any], *, seconds: float) -> list[str]:
    events = list(read_events(folder / EVENTS, "compile", "train_step"))
    compile_s = events[0]["data"]["seconds"]
    losses = [event["data"]["losses"]["total"] for event in events[1:]]
    return [
        f"smoke run done in {seconds:.0f} s, of which compilation {compile_s:.0f} s: {NUM_UPDATES} updates, a "
        f"validation and a checkpoint in {folder}",
        f"loss {losses[0]:.4g} in the first updates, {losses[-1]:.4g} in the last; validation "
        f"{deciding_text(summary)} (a model learns little in {NUM_UPDATES} updates)",
    ]


def smoke_of(experiment: Experiment) -> Experiment:
    """Returns the settings of the smoke run of an experiment.

    The numbers of updates, utterances and batch shapes, the size of a batch, and the times of validations, checkpoints
    and progress lines are lower. Everything else is as in the experiment.

    Raises:
        UserError: If the experiment is a dry run, or begins from a checkpoint.
    """
    if experiment.dry_run:
        raise UserError("--smoke trains and --dry-run does not: expected one of them")
    if is_checkpoint(experiment.folder):
        raise UserError(
            f"--smoke starts from the beginning, and --run-dir {experiment.folder} is a checkpoint: expected another "
            "--run-dir"
        )
    data, model = experiment.data, replace(experiment.model, sub_batches=1)
    seconds = min(data.batching.budget, BATCH_SECONDS) if data.batching.unit == "padded-seconds" else BATCH_SECONDS
    batching = Batching.planned(
        num_buckets=1, seconds=seconds, row_multiple=model.row_parts, sort_window=data.batching.sort_window
    )
    training = replace(
        experiment.training,
        num_updates=NUM_UPDATES,
        num_epochs=0.0,
        limits=replace(experiment.training.limits, epochs_this_job=0.0, max_hours=0.0, patience=0),
        accumulate=min(experiment.training.accumulate, 2),
        epoch_end="carried",
        validation=replace(
            experiment.training.validation, every=NUM_UPDATES, each_epoch=False, live=False, sample_every=0
        ),
        saving=replace(
            experiment.training.saving,
            every_minutes=0.0,
            every_updates=0,
            every_epochs=0,
            milestones=(),
            milestone_epochs=(),
        ),
        log_every=5,
        profile="",
    )
    return replace(
        experiment,
        name=f"{experiment.name}{SUFFIX}",
        run_dir=str(experiment.folder.with_name(f"{experiment.folder.name}{SUFFIX}")),
        fresh=False,
        model=model,
        data=replace(
            data,
            max_train_utterances=min(NUM_UTTERANCES, data.max_train_utterances or NUM_UTTERANCES),
            max_validation_utterances=min(NUM_VALIDATED, data.max_validation_utterances or NUM_VALIDATED),
            batching=batching,
        ),
        training=training,
        upload=Upload(),
    )


def clear(folder: Path) -> None:
    """Prepares the folder of a smoke run: creates it, or removes the files of the earlier smoke run.

    Raises:
        UserError: If the folder has files and is not that of a smoke run, or if a smoke run is in progress there.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SMOKE).is_file():
        raise UserError(f"{folder} is not empty and is not a smoke run: choose another --run-dir, or move it away")
    with held(folder):
        (folder / SMOKE).touch()
        for path in folder.iterdir():
            if path.name in (LOCK, SMOKE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
