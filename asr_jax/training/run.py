"""Folder of a run: checks whether it can be used, locks it, and lists rejected utterances."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asr_jax.checkpoints.store import checkpoint_to_evaluate, checkpoints_in, has_state, newest, restore_meta
from asr_jax.config import (
    DEVICES,
    RESUMABLE,
    Experiment,
    Resume,
    differences,
    from_json,
    is_of,
    load_experiment,
    located,
    may_change,
)
from asr_jax.core import files
from asr_jax.core.errors import UserError
from asr_jax.core.paths import is_utf8, quoted
from asr_jax.core.run_folder import CHECKPOINTS, EVENTS, EXPERIMENT, LOCK, REJECTED, TENSORBOARD, TOKENIZER
from asr_jax.core.text_files import json_text
from asr_jax.data.manifests.utterances import Rejected


def find_run(experiment: Experiment) -> Path:
    """Returns the folder to train in, of a new run or of one to continue. Writes nothing.

    If the folder of the experiment is a checkpoint, as RUN/checkpoints/N, it is an unused folder beside RUN.

    Raises:
        UserError: If the folder has a run with other settings (the message has each of them with both values), is not
            the folder of a run, or is a checkpoint that is missing or damaged.
    """
    if checkpoint := named_checkpoint(experiment):
        if experiment.fresh:
            raise UserError(
                f"--fresh True starts from random weights, and --run-dir {checkpoint} from a checkpoint: expected one "
                "of them"
            )
        refuse_changes(checkpoint, differences(experiment_of_checkpoint(checkpoint), experiment), experiment.resume)
        return _unused(checkpoint.parent.parent)
    folder = _unused(experiment.folder) if experiment.fresh else experiment.folder
    place = os.path.abspath(folder)
    if not is_utf8(place) or any(each < " " for each in place):  # the log of native libraries needs one line
        raise UserError(f"{place!a} is not UTF-8, or has control characters: choose another --run-dir")
    before = folder / EXPERIMENT
    if any(not has_state(folder / CHECKPOINTS, number) for number in checkpoints_in(folder / CHECKPOINTS)):
        raise UserError(
            f"{folder} is an imported model, which has no training state to continue: start a run from its weights "
            f"with --init-from {quoted(folder)} and another --run-dir"
        )
    if before.exists() and not was_saved(folder):
        return folder  # without a checkpoint, other settings lose nothing
    if before.exists():  # fails before any data are read; checkpoints are compared later
        refuse_changes(folder, differences(load_experiment(before), experiment), experiment.resume)
    elif folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: expected the folder of a run; choose another --run-dir")
    elif folder.exists() and any(folder.iterdir()) and not (folder / LOCK).exists():
        raise UserError(f"{folder} is not empty and is not a run: choose another --run-dir, or empty it")
    return folder


def named_checkpoint(experiment: Experiment) -> Path | None:
    """Returns the folder of the experiment if it is that of a checkpoint, as RUN/checkpoints/N; otherwise None."""
    folder = experiment.folder
    return folder if is_checkpoint(folder) else None


def is_checkpoint(folder: Path) -> bool:
    """Returns whether the name of a folder is that of a checkpoint, as RUN/checkpoints/N."""
    return folder.parent.name == CHECKPOINTS and folder.name.isdecimal()


def source_of(experiment: Experiment) -> Path | None:
    """Returns the folder of the run that contains the named checkpoint; None if there is no such name."""
    checkpoint = named_checkpoint(experiment)
    return checkpoint and checkpoint.parent.parent


def experiment_of_checkpoint(checkpoint: Path) -> Experiment:
    """Returns the settings that a checkpoint was written with.

    Raises:
        UserError: If the checkpoint is missing or damaged.
    """
    checkpoint_to_evaluate(checkpoint.parent, int(checkpoint.name))
    experiment: Experiment = from_json(restore_meta(checkpoint.parent, int(checkpoint.name))["experiment"])
    return located(experiment, checkpoint.parent.parent)


def copy_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Copies a checkpoint of another run, and the list of rejected utterances, into the folder of a new run."""
    place = folder / CHECKPOINTS / checkpoint.name
    unfinished = folder / f"{checkpoint.name}.unfinished"
    shutil.copytree(checkpoint, unfinished)
    place.parent.mkdir()
    unfinished.rename(place)
    if (rejected := checkpoint.parent.parent / REJECTED).is_file():
        shutil.copy(rejected, folder / REJECTED)


def refuse_changes(folder: Path, changed: Sequence[tuple[str, object, object]], resume: Resume) -> None:
    """Checks the settings that differ from those of the run.

    Args:
        changed: Name, former value and new value of each setting that differs.

    Raises:
        UserError: If a setting must not change when a run continues. The message has the ways to continue.
    """
    refused = [each for each in changed if not (may_change(each[0]) or resume.allows(each[0]))]
    if not refused:
        return
    lines = [f"  {name}: {_short(old)} before, {_short(new)} now" for name, old, new in refused]
    names = [name for name, _, _ in refused]
    group_of = {name: next((group for group in RESUMABLE if is_of(name, group)), "") for name in names}
    groups = ",".join(dict.fromkeys(filter(None, group_of.values())))
    allowable, others = [name for name in names if group_of[name]], [name for name in names if not group_of[name]]
    if "optim.class" in names:  # the state of another optimizer does not fit, and its fields are others
        allowable = []
    run = folder.parent.parent if is_checkpoint(folder) else folder
    ways = [
        f"  start a new run from its weights, with new optimizer state: --init-from {quoted(folder)} --run-dir "
        f"{quoted(_unused(run))}",
        f"  start a new run from random weights, beside this one: --fresh True --run-dir {quoted(run)}",
        "  continue it unchanged: use the former settings" + " and devices" * (DEVICES in names),
    ]
    if allowable and not others:
        ways.insert(0, f"  continue it with these changes and its optimizer state: --resume.allow {groups}")
    elif allowable:
        ways.insert(
            1,
            f"  continue it with the changes of {', '.join(allowable)}, and with the former {', '.join(others)}: "
            f"--resume.allow {groups}",
        )
    if "training.accumulate" in names or any(name.startswith("data.batching.") for name in names):
        ways += [
            "  continue it with less memory and the same utterances in each update: --training.split N --resume.allow "
            "accumulation, with the former training.accumulate and data.batching (each batch is computed "
            "in N parts, from 1 to its number of rows)"
        ]
    raise UserError("\n".join([f"{folder} has a run with other settings:", *lines, "Ways to go on:", *ways]))


def was_saved(folder: Path) -> bool:
    """Returns whether the run has or had a checkpoint, according to its files or its events."""
    if newest(folder / CHECKPOINTS):
        return True
    with contextlib.suppress(OSError), (folder / EVENTS).open("rb") as events:
        return any(b'"checkpoint_saved"' in line for line in events)
    return False


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Creates the folder and locks it against other jobs while the context is open.

    Raises:
        UserError: If another job trains in the folder, or it cannot be created or written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for inner in (CHECKPOINTS, TOKENIZER, TENSORBOARD):
                if (folder / inner).exists() and not os.access(folder / inner, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, f"no permission to write to {inner}")
            lock = files.held(
                folder / LOCK,
                f"{folder} is being trained in",
                otherwise="wait for it, stop it, or choose another --run-dir",
            )
            stack.enter_context(lock)
        except OSError as error:
            raise UserError(
                f"the run's folder {folder} cannot be written: {error.strerror}; choose another --run-dir"
            ) from error
        yield


class RejectedFile:
    """rejected.jsonl of a run. Each of its lines is read once, also while the file grows."""

    def __init__(self, folder: Path) -> None:
        self.path, self._num_bytes = folder / REJECTED, 0
        self._reasons: dict[bool, dict[tuple[str, str], str]] = {False: {}, True: {}}
        """Reasons by id and location, of utterances that are not used, and of those with remarks on their audio."""

    def append(self, rejected: Sequence[Rejected]) -> None:
        files.append_lines(self.path, (json_text(each.to_json()) for each in rejected))

    def reasons(self, *, are_differing: bool = False) -> Mapping[tuple[str, str], str]:
        """Returns the reasons of all utterances by id and location.

        Incomplete lines are ignored.

        Args:
            are_differing: Whether to return the used utterances with remarks on their audio instead of the rejected
                ones.
        """
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._num_bytes)
            for line in file:
                self._num_bytes += len(line)
                self._add(line)
        return self._reasons[are_differing]

    def _add(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            is_used = entry.get("stage") == "used"
            if not (is_used and "value" in entry):  # a value is a character of a text
                self._reasons[is_used][entry["id"], entry["location"]] = entry["reason"]


def _unused(folder: Path) -> Path:
    candidate, number = folder, 2
    while candidate.exists():
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return candidate


def _short(value: object) -> str:
    return "nothing" if value is None else repr(value)
