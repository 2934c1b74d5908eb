"""The folder of a run: made, continued or refused; and what a finished one gives to evaluation."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asr_jax.config import Experiment, differences, load_experiment, save_experiment
from asr_jax.core.errors import UserError

EXPERIMENT, BUCKETS, EVENTS = "experiment.json", "buckets.json", "events.jsonl"
SKIPPED, CURVES = "skipped.jsonl", "curves.png"
CHECKPOINTS, TOKENIZER, TENSORBOARD = "checkpoints", "tokenizer", "tensorboard"


def open_run(experiment: Experiment) -> tuple[Experiment, Path, bool]:
    """The experiment with its folder settled, the folder, and whether it is continued.

    Raises: UserError where the folder holds another experiment (each differing field is named with both values), or
    cannot be written.
    """
    if experiment.fresh:
        experiment = replace(experiment, run_dir=str(_unused(experiment.folder)), fresh=False)
    folder = experiment.folder
    before = folder / EXPERIMENT
    if before.exists():
        changed = differences(load_experiment(before), experiment)
        if changed:
            lines = [f"  {name}: {_short(old)} there, {_short(new)} now" for name, old, new in changed]
            raise UserError(
                f"{folder} holds a run with other settings:\n" + "\n".join(lines)
                + "\ngive the same settings to continue it, --fresh True to start anew beside it, or another --run-dir"
            )  # fmt: skip
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and not a run: choose another --run-dir, or empty it")
    return experiment, folder, before.exists()


def write_experiment(experiment: Experiment, folder: Path) -> None:
    """Raises: UserError where the folder cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_experiment(experiment, folder / EXPERIMENT)
    except OSError as error:
        raise UserError(
            f"the run's folder {folder} cannot be written: {error.strerror}; choose another --run-dir"
        ) from error


def append_skipped(folder: Path, entries: Sequence[Mapping[str, object]]) -> None:
    with (folder / SKIPPED).open("a") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())


def _unused(folder: Path) -> Path:
    stem, number = re.sub(r"-\d+$", "", folder.name), 2
    candidate = folder
    while candidate.exists():
        candidate = folder.with_name(f"{stem}-{number}")
        number += 1
    return candidate


def _short(value: object) -> str:
    return "nothing" if value is None else repr(value)
