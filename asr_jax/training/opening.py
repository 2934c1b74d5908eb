"""Opens the folder of a run, and makes the state that a job begins with: a new one, or that of a checkpoint."""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jax.stages import Compiled

from asr_jax.checkpoints.store import Checkpoints, newest, refuse_damaged, restore_meta
from asr_jax.config import (
    DEVICES,
    OF_MACHINE,
    RESUMABLE,
    Resume,
    differences,
    from_json,
    is_among,
    leaves,
    load_experiment,
    located,
    may_change,
    of_run,
    save_experiment,
)
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.meshes import placed, replicated
from asr_jax.core.names import counted
from asr_jax.core.native import move_native_log
from asr_jax.core.paths import quoted
from asr_jax.core.processes import agree, together
from asr_jax.core.programs import SOURCES, library_versions
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import CHECKPOINTS, EVENTS, EXPERIMENT, NATIVE, REJECTED, TOKENIZER
from asr_jax.inference.trained import check_tokenizer, save_plan, save_split
from asr_jax.observe.events import EventLog
from asr_jax.training import run as folders
from asr_jax.training.initial_state import InitialState, fresh_scaling, placed_state, state_from
from asr_jax.training.initial_weights import GivenWeights, read_initial_weights
from asr_jax.training.run_data import ADDED
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState


def open_folder(setup: Setup, stack: ExitStack, checkpoint: Path | None) -> dict[str, Any]:
    """Locks the folder and writes the files of a run, with experiment.json last, which makes the folder a run.

    A folder without checkpoints becomes a new run.

    Args:
        stack: Holds the lock.
        checkpoint: Checkpoint of another run that a new run continues. None: there is none.

    Returns:
        `changed`: Settings that differ from those of the newest checkpoint; None for a new run. `refused`: A message
        for each refused checkpoint. `first`, `position`: Update of the newest checkpoint, and position in the plan of
        the next update's first batch; the latter is None for a new run.
    """
    folder, changed = setup.folder, None
    if checkpoint:  # refuses changes before the folder exists
        _changed_since(restore_meta(checkpoint.parent, int(checkpoint.name)), setup)
    stack.enter_context(folders.held(folder))
    move_native_log(folder / NATIVE)
    if checkpoint:
        folders.copy_checkpoint(checkpoint, folder)
    refused = refuse_damaged(folder / CHECKPOINTS)
    done = newest(folder / CHECKPOINTS)
    if not done and folders.was_saved(folder):
        raise RunError(
            f"{folder / CHECKPOINTS} has no checkpoint, but {folder / EVENTS} lists some: "
            "restore them (is a disk not mounted?), or start a new run in another folder with --fresh True"
        )
    meta = restore_meta(folder / CHECKPOINTS, done) if done else {}
    position = meta.get("data_position")
    num_updates = setup.num_updates if position is None else setup.continued(done, position).num_updates
    if done > num_updates:
        raise UserError(
            f"{folder} already has {done} updates, but the settings end the run after {num_updates}: "
            "raise --training.num-updates, or start a new run in another folder with --fresh True"
        )
    setup.data.tokenizer.save(folder / TOKENIZER)
    if done:
        check_tokenizer(folder, done)
        changed = _changed_since(meta, setup)
    else:
        (folder / REJECTED).unlink(missing_ok=True)
        of_sets = (*setup.data.removed.values(), *setup.data.round_trips.values())
        remarks = [entry for of_set in of_sets for entry in of_set.entries()]
        folders.RejectedFile(folder).append(setup.data.train.rejections.entries + remarks)
    save_plan(setup.data.train, folder)
    if setup.data.sets.is_split and (checkpoint or not done):
        save_split(setup.data.sets, folder)
    save_experiment(of_run(setup.experiment), folder / EXPERIMENT)
    return {"changed": changed, "refused": refused, "first": done, "position": position}


def _changed_since(meta: Mapping[str, Any], setup: Setup) -> list[tuple[str, Any, Any]]:
    """Returns the settings and devices that differ from a checkpoint, with both values."""
    other_sets = f". python -m asr_jax.evaluate {quoted(setup.folder)} --data … measures other sets"
    for name, now in setup.data.fingerprints().items():
        if name == ADDED and meta["data"].get(name, now) != now:
            raise UserError(
                f"the recordings that augmentations add have changed since {setup.folder} was started: restore them, "
                "or start a new run in another folder with --fresh True"
            )
        if name != ADDED and meta["data"][name] != now:
            number = len((setup.data.train if name == "training" else setup.data.validation).index)
            raise UserError(
                f"the {name} data of {setup.folder} have changed since the run was started (fingerprint "
                f"{meta['data'][name]} then, {now} now, of {number} utterances): the ids, durations, texts or order of "
                "the utterances in the manifests, or the utterances that pass the filters. If a manifest has no "
                "durations, audio files may have been added, removed or changed. Restore the data that the run was "
                "started with, or start a new run in another folder with --fresh True"
                + _of_devices(setup, meta) * (name == "training")
                + other_sets * (name == "validation")
            )
    changed = differences(located(from_json(meta["experiment"]), setup.source), setup.experiment)
    # A job may have accepted changes and ended before its first checkpoint.
    accepted = load_experiment(setup.folder / EXPERIMENT) if (setup.folder / EXPERIMENT).is_file() else None
    since = differences(accepted, setup.experiment) if accepted else [("", None, None)]
    is_accepted = all(may_change(name) for name, _, _ in since)
    there, here = meta["devices"], setup.devices
    if there != here:
        changed.append((DEVICES, _shown(there), _shown(here)))
    counts = [{**each, "kind": ""} for each in (there, here)]  # another kind of device is allowed
    to_judge = [change for change in changed if change[0] != DEVICES or counts[0] != counts[1]]
    accepted_names = tuple(name for name in RESUMABLE if name != DEVICES) if is_accepted else ()
    folders.refuse_changes(setup.source, to_judge, Resume(accepted_names + setup.experiment.resume.allow))
    return [change for change in changed if not is_among(change[0], ("run_dir", "fresh", "resume"))]


def _of_devices(setup: Setup, meta: Mapping[str, Any]) -> str:
    """Returns the hint that batches have rows for each device, if the number of devices has changed; otherwise none."""
    there = meta["devices"]["number"]
    if there == setup.mesh.size or setup.experiment.data.batching.devices != 0:
        return ""
    return (
        f". The run had {counted(there, 'device')}, and its batches have rows for each of them (data.batching.devices "
        f"0): --data.batching.devices {there} keeps them"
    )


def _shown(on: Mapping[str, Any]) -> str:
    return f"{on['number']} × {on['kind']}" + f" in {on['processes']} processes" * (on["processes"] > 1)


def common_values(setup: Setup) -> dict[str, Any]:
    """Returns the settings and digests that must be equal on all processes of a run."""
    settings = {name: value for name, value in leaves(setup.experiment) if not is_among(name, OF_MACHINE)}
    symbols = hashlib.sha256(repr(setup.data.tokenizer.symbols).encode()).hexdigest()[:16]
    common: dict[str, Any] = {"source code of asr_jax": SOURCES, "libraries": library_versions()}
    common |= {"tokenizer": symbols, "decoding's files": setup.decoding_digest, "validation sets": setup.data.set_names}
    common["devices"] = [str(device) for device in setup.mesh.devices.flat]
    return common | {f"{name} data": it for name, it in setup.data.fingerprints().items()} | settings


def given_weights(setup: Setup, shapes: InitialState) -> GivenWeights | None:
    """Reads the weights of `init.path` on all processes, which must agree. None without a path."""
    if not setup.experiment.init.path:
        return None
    of_model = setup.recipe.of_model(shapes.state)
    given = together(lambda: read_initial_weights(setup.experiment, setup.data.tokenizer, of_model))
    agree({"initial weights": given.digest()})
    return given


def new_state(setup: Setup, log: EventLog, drawn: Compiled, given: GivenWeights | None) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run, random or with the given weights."""
    begun = drawn()
    if given is None:
        if setup.recipe.lora.rank:
            log.write(
                "warning",
                message=f"lora.rank is {setup.recipe.lora.rank}, but the kernels below the adapters are random and are "
                "not trained: expected pre-trained weights, --init-from PATH",
            )
        return placed_state(begun, setup.mesh, setup.recipe.sharding)
    weights = given.fill(setup.recipe.of_model(begun.state))
    log.write("initialised", **vars(given.account), message="\n".join(given.account.lines()))
    return state_from(setup.recipe, weights, setup.mesh, seed=setup.experiment.seed)


def restored_state(
    setup: Setup,
    log: EventLog,
    checkpoints: Checkpoints,
    shapes: InitialState,
    *,
    changed: Collection[str],
    copied_from: Path | None,
) -> tuple[TrainState, Tree]:
    """Restores the state and the averaged parameters of the newest checkpoint.

    Args:
        copied_from: Checkpoint of another run that it is a copy of. None: it is of this run.
    """
    latest = checkpoints.latest
    assert latest is not None, "no checkpoint"
    state, average, meta = checkpoints.restore(latest, state=shapes.state, average=shapes.average)
    log.write(
        "resumed", update=latest, data_position=meta["data_position"], path=copied_from or checkpoints.path(latest)
    )
    if "training.precision" in changed:  # a scale of float16 does not suit other precisions, nor theirs float16
        state = state.replace(scaling=placed(fresh_scaling(setup.recipe), replicated(setup.mesh)))
    return state, average
