"""Training loop: validate → save → load the batches of an update → step, in the order of the plan."""

import functools
import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled

from asr_jax.checkpoints.store import Checkpoints, newest, refuse_damaged, restore_meta
from asr_jax.config import (
    DEVICES,
    RESUMABLE,
    Experiment,
    Resume,
    differences,
    from_json,
    is_among,
    is_of_machine,
    leaves,
    load_experiment,
    may_change,
    save_experiment,
)  # fmt: skip
from asr_jax.core import devices
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.meshes import global_batch, replicate
from asr_jax.core.names import counted
from asr_jax.core.native import move_native_log
from asr_jax.core.peers import lost_after
from asr_jax.core.processes import agree, is_main, on_main, together
from asr_jax.core.programs import SOURCES, library_versions
from asr_jax.core.pytrees import Tree, num_elements
from asr_jax.core.run_folder import (
    CHECKPOINTS,
    CURVES,
    EVENTS,
    EXPERIMENT,
    NATIVE,
    REJECTED,
    SMOKE,
    TENSORBOARD,
    TOKENIZER,
)  # fmt: skip
from asr_jax.data.loading.sharded import Stream, open_sharded, shares_of
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.inference.trained import check_tokenizer, save_plan, save_split
from asr_jax.observe.curves import draw_curves
from asr_jax.observe.detectors import Detectors
from asr_jax.observe.events import EventLog, Sink
from asr_jax.observe.health import health
from asr_jax.observe.progress import ProgressView
from asr_jax.observe.tensorboard import TensorBoard
from asr_jax.training import run as folders
from asr_jax.training.initial_weights import Given, read_initial_weights
from asr_jax.training.profile import Profile
from asr_jax.training.programs import CompiledSteps, CompileWatch, Part, compile_steps, pre_allocate
from asr_jax.training.reporting import RejectedAudio, Reporter, report_data, report_filtered, report_native
from asr_jax.training.saving import Saver
from asr_jax.training.setup import ADDED, Setup, other_product, set_up, short_run
from asr_jax.training.state import (
    InitialState,
    TrainState,
    abstract_state,
    fresh_scaling,
    lower_initial_state,
    placed_state,
    state_from,
)  # fmt: skip
from asr_jax.training.stopping import Signals, Stopped
from asr_jax.training.timetable import ALL_DONE, HOURS_OVER, JOB_DONE, Timetable
from asr_jax.training.uploads import Uploads, check_upload
from asr_jax.training.validation import NO_GAIN, Validator

SPLIT_CHANGED = (
    "training.split is {}: batch norm uses the statistics of each part of a batch, so losses differ from those with "
    "another split"
)
# Number of updates that are dispatched ahead. The device does not become idle, and its memory holds only a few batches.
IN_FLIGHT = 2


def train(experiment: Experiment) -> dict[str, Any]:
    """Trains or continues the run of an experiment.

    Returns:
        The summary of the run, as in its run_complete event; only `continues`, a message, if the job ended because of
        training.epochs_this_job.

    Raises:
        UserError: If the run cannot start. Nothing is written.
        Stopped: If a signal or training.max_hours ended the job.
        RunError: If the run has started and cannot continue.
    """
    began_s = time.monotonic()
    folder = Path(on_main(lambda: str(folders.find_run(experiment))))
    checkpoint = folders.named_checkpoint(experiment)
    check_upload(experiment)
    source = folders.source_of(experiment)
    experiment = replace(experiment, run_dir=str(folder), fresh=False)
    training, sinks = experiment.training, list[Sink]()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        setup = together(lambda: set_up(experiment, folder, source=source))
        agree(_common(setup))
        lost_after(experiment.training.lost_after_s)
        signals.stop_before_training()
        begun = on_main(lambda: _begin(setup, stack, checkpoint))
        if begun["position"] is not None:
            setup = setup.continued(begun["first"], begun["position"])
        if is_main():
            sinks = [
                ProgressView(plain_every=training.log_every, num_samples=training.num_samples),
                TensorBoard(folder / TENSORBOARD),
            ]
        log = stack.enter_context(EventLog(folder / EVENTS, enabled=is_main(), sinks=sinks))
        warn = functools.partial(log.write, "warning")
        sinks.append(
            Detectors(
                warn, alarm_wer=training.alarm_wer, alarm_updates=training.alarm_updates,
                is_sharded=experiment.data.order == "sharded", chance=_chance(experiment),
            )
        )  # fmt: skip
        for line in begun["refused"]:
            log.write("warning", message=line)
        checkpoints = stack.enter_context(
            Checkpoints(
                folder / CHECKPOINTS, keep_last=training.keep_last, keep_best=training.keep_best,
                milestones=training.milestones, decoding=setup.decoding_digest, head=setup.head,
                best_of=setup.best_of,
            )
        )  # fmt: skip
        uploads = stack.enter_context(Uploads(experiment.upload, folder, log))
        try:
            summary = _train(
                setup, log, checkpoints, uploads, signals, changed=begun["changed"], copied_from=checkpoint,
                began_s=began_s,
            )  # fmt: skip
        except Stopped:
            _close(folder)
            raise
        except BaseException as error:
            with suppress(OSError):  # if the disk is full, the first error is the one to report
                log.write("run_failed", reason=f"{type(error).__name__}: {error}")
            _close(folder)
            raise
        if wrong := _close(folder):
            log.write("warning", message=wrong)
    return summary


def _chance(experiment: Experiment) -> dict[str, float]:
    """Returns the values that metrics have at chance level, by their names in events."""
    of_heads = ((name, head.chance()) for name, head in experiment.model.heads.items())
    return {f"{name}/{metric}": value for name, values in of_heads for metric, value in values.items()}


def _close(folder: Path) -> str:
    """Draws the curves and prints the health report. Returns an error message, empty if both succeed."""
    try:
        if is_main():
            draw_curves(folder / EVENTS, folder / CURVES)
            print("\n".join(health(folder / EVENTS)))
    except Exception as error:
        return f"the curves could not be drawn: {error!r}"
    return ""


def _common(setup: Setup) -> dict[str, Any]:
    """Returns the settings and digests that must be equal on all processes of a run."""
    settings = {name: value for name, value in leaves(setup.experiment) if not is_of_machine(name)}
    symbols = hashlib.sha256(repr(setup.tokenizer.symbols).encode()).hexdigest()[:16]
    common: dict[str, Any] = {"source code of asr_jax": SOURCES, "libraries": library_versions()}
    common |= {"tokenizer": symbols, "decoding's files": setup.decoding_digest, "validation sets": setup.set_names}
    common["devices"] = [str(device) for device in setup.mesh.devices.flat]
    return common | {f"{name} data": it for name, it in setup.data_fingerprints().items()} | settings


def _begin(setup: Setup, stack: ExitStack, checkpoint: Path | None) -> dict[str, Any]:
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
    setup.tokenizer.save(folder / TOKENIZER)
    if done:
        check_tokenizer(folder, done)
        changed = _changed_since(meta, setup)
    else:
        (folder / REJECTED).unlink(missing_ok=True)
        removed = [entry for of_set in setup.removed.values() for entry in of_set.entries()]
        folders.append_rejected(folder, setup.train.rejections.entries + removed + setup.absent.entries())
    save_plan(setup.train, folder)
    if setup.sets.is_split and (checkpoint or not done):
        save_split(setup.sets, folder)
    save_experiment(replace(setup.experiment, resume=Resume()), folder / EXPERIMENT)  # allowed for this job only
    return {"changed": changed, "refused": refused, "first": done, "position": position}


def _changed_since(meta: Mapping[str, Any], setup: Setup) -> list[tuple[str, Any, Any]]:
    """Returns the settings, and the devices, that differ from those of a checkpoint, with both values.

    Raises:
        UserError: If the data have changed, or a setting that must not change, or the number of devices without
            permission.
    """
    for name, now in setup.data_fingerprints().items():
        if name == ADDED and meta["data"].get(name, now) != now:
            raise UserError(
                f"the recordings that augmentations add have changed since {setup.folder} was started: restore them, "
                "or start a new run in another folder with --fresh True"
            )
        if name != ADDED and meta["data"][name] != now:
            number = len((setup.train if name == "training" else setup.validation).index)
            raise UserError(
                f"the {name} data of {setup.folder} have changed since the run was started (fingerprint "
                f"{meta['data'][name]} then, {now} now, of {number} utterances): the ids, durations, texts or order of "
                "the utterances in the manifests, or the utterances that pass the filters. If a manifest has no "
                "durations, audio files may have been added, removed or changed. Restore the data that the run was "
                "started with, or start a new run in another folder with --fresh True"
                + _of_devices(setup, meta) * (name == "training")
                + (f". python -m asr_jax.evaluate {setup.folder} --data … measures other sets" * (name == "validation"))
            )
    changed = differences(from_json(meta["experiment"]), setup.experiment)
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
    there, sampling = meta["devices"]["number"], setup.experiment.data.sampling
    if there == setup.mesh.size or sampling.mode == "planned" or sampling.devices:
        return ""
    return (
        f". The run had {counted(there, 'device')}, and batches of data.sampling.mode {sampling.mode} have rows for "
        f"each device: --data.sampling.devices {there} keeps them"
    )


def _shown(on: Mapping[str, Any]) -> str:
    return f"{on['number']} × {on['kind']}" + f" in {on['processes']} processes" * (on["processes"] > 1)


def _train(
    setup: Setup,
    log: EventLog,
    checkpoints: Checkpoints,
    uploads: Uploads,
    signals: Signals,
    *,
    changed: list[tuple[str, Any, Any]] | None,
    copied_from: Path | None,
    began_s: float,
) -> dict[str, Any]:
    experiment, training, groups = setup.experiment, setup.experiment.training, setup.groups
    beginning = lower_initial_state(setup.recipe, seed=experiment.seed, programs=setup.programs)
    shapes = abstract_state(beginning, setup.mesh, setup.recipe.sharding)
    saver = Saver(setup, log, checkpoints, uploads, num_parameters=num_elements(shapes.state.params))
    if already := saver.finished_before():
        uploads.offer(checkpoints.best)
        uploads.finish()
        if log.last != "run_complete":  # the last job was killed after its last checkpoint
            log.write("run_complete", reason="all updates done", **already)
        return already
    _announce(setup, log, num_parameters=saver.num_parameters, changed=changed)
    uploads.offer(checkpoints.best)  # an upload of the last job may have failed
    if saver.forgets:
        log.write("warning", message=saver.forgets)
    names = {name for name, _, _ in changed or ()}
    if "training.split" in names and jax.tree.leaves(shapes.state.batch_stats):
        log.write("warning", detector="batch norm", message=SPLIT_CHANGED.format(training.split))
    given = _initial_weights(setup, shapes) if checkpoints.latest is None else None
    first = checkpoints.latest or 0
    timetable = Timetable(
        training, groups, first=first, num_updates=setup.num_updates, began_s=began_s,
        owes_validation=saver.owes_validation,
    )  # fmt: skip
    if timetable.is_over():  # before the compilation, which can take minutes
        log.write("job_stopped", update=first, reason=HOURS_OVER)
        raise Stopped(_stopped(setup, HOURS_OVER, first), HOURS_OVER)
    validator = Validator(setup, log, shapes, best=saver.best, num=saver.num_without_gain)
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(beginning.compile) if checkpoints.latest is None else None
        steps = _compile(setup, log, shapes, validator)
    if drawing:
        (state, average), update = _begun(setup, log, drawing.result(), given), 0
    else:
        state, average, update = _restored(log, checkpoints, shapes, copied_from=copied_from)
        if "training.precision" in names:  # a scale of float16 does not suit other precisions, nor theirs float16
            state = state.replace(scaling=replicate(fresh_scaling(setup.recipe), setup.mesh))
    if training.pre_allocate:
        log.write("pre_allocated", **pre_allocate(setup, steps, state))
    data_state = _state_of_data(checkpoints) if setup.sets.shards else None
    rejected = RejectedAudio(setup.folder, log, utterances=setup.train.index.utterances, limit=training.max_rejected)
    reporter = Reporter(setup, log, loss_terms=steps.loss_terms)
    timed = reporter.throughput.timed
    signals.wait_for_save()
    with ExitStack() as stack:
        stack.enter_context(profile := Profile(training, setup.folder, log))
        batches = stack.enter_context(_open_data(setup, groups.positions(update).start, data_state))
        while True:
            summary = None
            signal = signals.agreed() if update % training.log_every == 0 or jax.process_count() == 1 else ""
            due = timetable.due(update, signal=bool(signal))
            profile.before(update - first)
            if due.at_line:
                saver.report()
                rejected.flush()
                reporter.flush(update=update)
            # `no_gain` holds here if the last job was stopped between validations. After a signal there is no time for
            # a validation, and one that runs is stopped; the next job repeats it.
            if not signal and (due.validates or validator.no_gain()):
                epoch = setup.epoch(update, data_state)
                if found := validator.validate(state, average, update, epoch=epoch, is_stopped=signals.have_come):
                    summary = saver.summary(found, update, best=validator.best)
                signal = signals.agreed()
            elif not signal and due.samples:
                validator.show_samples(average, update)
            ends = signal or due.ends or validator.no_gain()
            if summary or (update > first and (ends or due.saves or (due.at_line and saver.is_overdue()))):
                saver.save(
                    update, state, average, summary=summary, best=validator.best,
                    num_without_gain=validator.num_without_gain, data_state=data_state,
                )  # fmt: skip
            if ends:
                saver.finish()
                if not signal and ends != HOURS_OVER:  # otherwise the time of the job is limited
                    uploads.finish()
                break
            with timed("waiting"):
                group = [next(batch for batch in batches if batch.position == p) for p in groups.positions(update)]
            if update % training.log_every == 0:
                reporter.announce(update, group)
            with timed("host"):
                parts = [part for loaded in group for part in _parts(setup, loaded)]
                accumulated = steps.accumulate(state, parts)
                state, average, report = steps.apply_update(state, average, accumulated)
                del accumulated  # otherwise its memory would still be in use during the next gradient
            update += 1
            data_state = group[-1].state
            rejected.add(group)
            reporter.add(report, group)
            with timed("device"):
                reporter.wait(IN_FLIGHT)
            if reporter.has_failed():
                reporter.flush(update=update)
            if update == first + 1:
                stack.enter_context(CompileWatch(functools.partial(_recompiled, log)))
    return _ended(setup, log, state, ends=ends, update=update, summary=summary)


def _initial_weights(setup: Setup, shapes: InitialState) -> Given | None:
    """Reads the weights of `init.path` on all processes, which must agree. None without a path."""
    if not setup.experiment.init.path:
        return None
    of_model = setup.recipe.of_model(shapes.state)
    given = together(lambda: read_initial_weights(setup.experiment, setup.tokenizer, of_model))
    agree({"initial weights": given.digest()})
    return given


def _open_data(setup: Setup, start: int, state: dict[str, Any] | None) -> AbstractContextManager[Iterator[LoadedBatch]]:
    """Opens the batches of training from a position on.

    Args:
        start: Position of the first batch.
        state: State of the shards of this process before it; None at the beginning, or without shards.
    """
    data = setup.experiment.data
    if setup.sets.shards:
        return open_sharded(stream_of(setup), state, start=start)
    source = BatchSource(setup.train.index, setup.train.plan, setup.layout, storage=data.storage)
    return open_batches(source, start=start, workers=data.workers, threads=data.threads)


def stream_of(setup: Setup) -> Stream:
    """Settings of the batches of shards of this process."""
    data, scale, plan = setup.experiment.data, setup.train.index.scale, setup.train.plan
    return Stream(
        shards=setup.sets.shards, buckets=plan.buckets, shares=shares_of(plan), scale=scale, layout=setup.layout,
        tokenizer=setup.tokenizer if setup.tokenizer.has_labels else None, filters=data.filters,
        output_length=functools.partial(setup.model.label_length, of_features=scale.of_features),
        frames_needed=setup.experiment.model.frames_needed, takes_ids=data.tokenizer.takes_ids, speeds=data.speeds,
        window=data.shuffle_window, seed=setup.experiment.seed, threads=data.threads, storage=data.storage,
        options=ReadOptions(texts_may_lack=not setup.tokenizer.has_labels, allow_pipes=data.allow_pipes),
    )  # fmt: skip


def _state_of_data(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """State of the shards of this process in the newest checkpoint; None without a checkpoint.

    Raises:
        UserError: If the number of processes has changed.
    """
    if checkpoints.latest is None:
        return None
    states = restore_meta(checkpoints.folder, checkpoints.latest).get("data_states") or []
    if len(states) != jax.process_count():
        raise UserError(
            f"the checkpoint has the states of the shards of {len(states)} processes, and there are "
            f"{jax.process_count()}: each process reads its own shards; continue with as many processes"
        )
    state: dict[str, Any] | None = states[jax.process_index()]
    return state


def _parts(setup: Setup, loaded: LoadedBatch) -> list[Part]:
    """Returns the parts of a batch on the devices, each with its shape and the batch's position in the plan."""
    plan = setup.train.plan
    number = plan[loaded.position].bucket if loaded.bucket is None else loaded.bucket
    parts = setup.layout.parts(loaded.batch, plan.buckets[number].batch_size)
    return [(setup.shapes[number], global_batch(part, setup.mesh), np.int32(loaded.position)) for part in parts]


def _ended(
    setup: Setup, log: EventLog, state: TrainState, *, ends: str, update: int, summary: dict[str, Any] | None
) -> dict[str, Any]:
    """Writes the last event and returns the summary of the run, or `continues` if the epochs of the job are done.

    Raises:
        Stopped: If the job ended before the run.
        RunError: If no update changed the parameters.
    """
    if summary and (ends == ALL_DONE or ends.startswith(NO_GAIN)):
        if not int(state.updates):
            raise RunError(
                f"all {update} updates were empty: no recording could be read, or all have more labels than fit their "
                f"frames; see {setup.folder / REJECTED}"
            )
        log.write("run_complete", reason=ends, **summary)
        return summary
    log.write("job_stopped", update=update, reason=ends)
    message = _stopped(setup, ends, update)
    if ends == JOB_DONE:
        return {"continues": message}
    raise Stopped(message, ends)


def _stopped(setup: Setup, reason: str, update: int) -> str:
    saved = f"saved after update {update}" if update else "no update was done, nothing was saved"
    return f"{reason}: {saved}; python -m asr_jax.train --run-dir {setup.folder} continues the run"


def _compile(setup: Setup, log: EventLog, shapes: InitialState, validator: Validator) -> CompiledSteps:
    """Compiles all programs of training and validation before the first update."""
    started_s, buckets, number = time.monotonic(), setup.shapes, itertools.count(1)
    log.write("compile_start", shapes=len(buckets))
    validator.prepare()
    steps = compile_steps(
        setup.recipe, buckets, shapes, scale=setup.train.index.scale, mesh=setup.mesh,
        num_batches=setup.most_parts, sounds=setup.sounds, programs=setup.programs,
        tell=lambda bucket: log.write("compiled", number=next(number), shapes=len(buckets), bucket=vars(bucket)),
    )  # fmt: skip
    validator.wait()
    log.write("compile", rows=steps.table, memory=steps.memory, seconds=round(time.monotonic() - started_s, 1))
    report_native(log)
    return steps


def _begun(setup: Setup, log: EventLog, drawn: Compiled, given: Given | None) -> tuple[TrainState, Tree]:
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


def _restored(
    log: EventLog, checkpoints: Checkpoints, shapes: InitialState, *, copied_from: Path | None
) -> tuple[TrainState, Tree, int]:
    """Restores the state, the averaged parameters and the number of updates of the newest checkpoint."""
    latest = checkpoints.latest
    assert latest is not None, "no checkpoint"
    state, average, meta = checkpoints.restore(latest, state=shapes.state, average=shapes.average)
    log.write(
        "resumed", update=latest, data_position=meta["data_position"], path=copied_from or checkpoints.path(latest)
    )
    return state, average, latest


def _recompiled(log: EventLog, function: str, seconds: float, reason: str) -> None:
    log.write("recompiled", function=function, seconds=round(seconds, 2), reason=reason)


def _announce(setup: Setup, log: EventLog, *, num_parameters: int, changed: list[tuple[str, Any, Any]] | None) -> None:
    index, plan = setup.train.index, setup.train.plan
    training = setup.experiment.training
    log.write(
        "run_start", run=setup.experiment.name, num_updates=setup.num_updates, num_parameters=num_parameters,
        num_epochs=round(setup.num_updates / setup.updates_per_epoch, 2), num_devices=setup.mesh.size,
        device=setup.mesh.devices.flat[0].device_kind, on=devices.description(),
        changed=[{"setting": name, "old": old, "new": new} for name, old, new in changed or ()],
        utterances=index.num_utterances, hours=index.hours,
        vocabulary=setup.tokenizer.vocab_size, padding_share=plan.padding_share, data=setup.train.fingerprint(),
    )  # fmt: skip
    for name, old, new in changed or ():
        log.write("setting_changed", setting=name, old=old, new=new)
    each = setup.layout.num_devices * training.split
    if more := setup.padding_rows:
        log.write(
            "warning", detector="padding rows", message=f"padding rows add {100 * more:.0f} % to the rows of the "
            f"batches, because the rows of some are not a multiple of {each} (devices × training.split); in a new run, "
            f"data.buckets.batch_multiple {each} avoids them",
        )  # fmt: skip
    report_data(setup, log.write)
    for message in other_product(setup.experiment, setup.mesh.size):
        log.write("warning", detector="rows of an update", message=message)
    if not (setup.folder / SMOKE).is_file():  # smoke runs end before any warm-up
        for message in short_run(setup.experiment.optim.schedule, setup.length):
            log.write("warning", detector="warm-up", message=message)
    if changed is None:
        report_filtered(setup.train.rejections, log.write, path=setup.folder / REJECTED)
