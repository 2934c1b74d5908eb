"""The folder of a run: made, continued or rejected; and what a finished one gives to evaluation."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asr_jax.checkpoints.store import newest
from asr_jax.config import Experiment, differences, load_experiment, may_change
from asr_jax.core import files
from asr_jax.core.errors import UserError
from asr_jax.core.run_folder import (
    CHECKPOINTS,
    EVENTS,
    EXPERIMENT,
    FORMER_REJECTED,
    LOCK,
    REJECTED,
    TENSORBOARD,
    TOKENIZER,
)
from asr_jax.data.manifests.utterances import Rejected


def find_run(experiment: Experiment) -> Path:
    """The folder to train in, new or to be continued; writes nothing.

    Raises: UserError where the folder holds another experiment (each differing field is named with both values), or
    cannot be written.
    """
    folder = _unused(experiment.folder) if experiment.fresh else experiment.folder
    before = folder / EXPERIMENT
    if before.exists() and not was_saved(folder):
        return folder  # nothing is lost by other settings
    if before.exists():  # its checkpoints are compared later; here, before any data are read
        refuse_changes(folder, differences(load_experiment(before), experiment))
    elif folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected the folder of a run: choose another --run-dir")
    elif folder.exists() and any(folder.iterdir()) and not (folder / LOCK).exists():
        raise UserError(f"{folder} is not empty and not a run: choose another --run-dir, or empty it")
    return folder


def refuse_changes(folder: Path, changed: Sequence[tuple[str, object, object]]) -> None:
    """Raises: UserError where a setting has changed, (name, old, new), that may not."""
    lines = [f"  {name}: {_short(old)} there, {_short(new)} now" for name, old, new in changed if not may_change(name)]
    if lines:
        raise UserError(
            f"{folder} holds a run with other settings:\n" + "\n".join(lines)
            + "\ngive the same settings to continue it, --fresh True to start anew beside it, or another --run-dir"
        )  # fmt: skip


def was_saved(folder: Path) -> bool:
    """Whether the run ever had a checkpoint, by its files or by its events."""
    if newest(folder / CHECKPOINTS):
        return True
    with contextlib.suppress(OSError), (folder / EVENTS).open(errors="replace") as events:
        return any('"checkpoint_saved"' in line for line in events)
    return False


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps other jobs out of it for as long as this one is there.

    Raises: UserError where another job trains in it, or where it cannot be made or written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for inner in (CHECKPOINTS, TOKENIZER, TENSORBOARD):
                if (folder / inner).exists() and not os.access(folder / inner, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, f"no permission to write into {inner}")
            lock = files.held(
                folder / LOCK, f"{folder} is being trained in",
                otherwise="wait for it, stop it, or choose another --run-dir",
            )  # fmt: skip
            stack.enter_context(lock)
        except OSError as error:
            raise UserError(
                f"the run's folder {folder} cannot be written: {error.strerror}; choose another --run-dir"
            ) from error
        yield


def append_rejected(folder: Path, rejected: Sequence[Rejected]) -> None:
    append_lines(folder / REJECTED, [each.to_json() for each in rejected])


def append_lines(path: Path, entries: Sequence[Mapping[str, object]]) -> None:
    """Adds objects of JSON to a file, a line each."""
    with path.open("a") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())


def rejected_utterances(folder: Path) -> set[tuple[str, str]]:
    """Id and location of the utterances that rejected.jsonl names; a line that was cut is passed over."""
    utterances = set()
    for path in filter(Path.exists, (folder / FORMER_REJECTED, folder / REJECTED)):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                utterances.add((entry["id"], entry["location"]))
    return utterances


def _unused(folder: Path) -> Path:
    candidate, number = folder, 2
    while candidate.exists():
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return candidate


def _short(value: object) -> str:
    return "nothing" if value is None else repr(value)
