"""Training loop: validate → save → load the batches of an update → step, in the order of the plan."""

import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from asr_jax.checkpoints.store import Checkpoints
from asr_jax.config import Experiment
from asr_jax.core.devices import platform_of
from asr_jax.core.errors import RunError
from asr_jax.core.meshes import global_batch
from asr_jax.core.paths import quoted
from asr_jax.core.processes import agree, is_main, on_main, together
from asr_jax.core.programs import compiled_in
from asr_jax.core.pytrees import num_elements
from asr_jax.core.run_folder import CHECKPOINTS, COMPILED, CURVES, EVENTS, REJECTED, TENSORBOARD
from asr_jax.data.loading.source import LoadedBatch
from asr_jax.observe.curves import draw_curves
from asr_jax.observe.detectors import Detectors
from asr_jax.observe.events import EventLog, Sink
from asr_jax.observe.health import health
from asr_jax.observe.progress import ProgressView
from asr_jax.observe.tensorboard import TensorBoard
from asr_jax.training import run as folders
from asr_jax.training.batches import open_data, pre_allocate, state_of_data
from asr_jax.training.initial_state import InitialState, abstract_state, lower_initial_state
from asr_jax.training.opening import common_values, given_weights, new_state, open_folder, restored_state
from asr_jax.training.profile import Profile
from asr_jax.training.programs import CompiledSteps, Part, watch_compilations
from asr_jax.training.reporting import RejectedAudio, Reporter, announce, report_native
from asr_jax.training.saving import Saver
from asr_jax.training.setup import Setup, set_up
from asr_jax.training.state import TrainState, with_wer
from asr_jax.training.stopping import Signals, Stopped
from asr_jax.training.timetable import ALL_DONE, HOURS_OVER, JOB_DONE, Timetable
from asr_jax.training.uploads import Uploads, check_upload
from asr_jax.training.validation import NO_GAIN, Validator

# Number of updates that are dispatched ahead. The device does not become idle, and its memory holds only a few batches.
IN_FLIGHT = 2


def train(experiment: Experiment) -> dict[str, Any]:
    """Trains or continues the run of an experiment.

    Returns:
        The summary of the run, as in its run_complete event; only `continues`, a message, if the job ended because of
        training.limits.epochs_this_job.

    Raises:
        UserError: If the run cannot start. Nothing is written.
        Stopped: If a signal or training.limits.max_hours ended the job.
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
        agree(common_values(setup))
        signals.stop_before_training()
        begun = on_main(lambda: open_folder(setup, stack, checkpoint))
        stack.enter_context(compiled_in(folder / COMPILED, platform_of(setup.mesh.devices.flat[0])))
        if begun["position"] is not None:
            setup = setup.continued(begun["first"], begun["position"])
        if is_main():
            sinks = [
                ProgressView(plain_every=training.log_every, num_samples=training.validation.num_samples),
                TensorBoard(folder / TENSORBOARD),
            ]
        log = stack.enter_context(EventLog(folder / EVENTS, enabled=is_main(), sinks=sinks))
        warn = functools.partial(log.write, "warning")
        sinks.append(Detectors(warn, chance=_chance(experiment)))
        for line in begun["refused"]:
            log.write("warning", message=line)
        checkpoints = stack.enter_context(
            Checkpoints(
                folder / CHECKPOINTS,
                keep_last=training.saving.keep_last,
                keep_best=training.saving.keep_best,
                milestones=training.saving.milestones + setup.groups.last_updates(training.saving.milestone_epochs),
                decoding=setup.decoding_digest,
                head=setup.head,
                best_of=setup.best_of,
                measure=setup.measure,
            )
        )
        uploads = stack.enter_context(Uploads(experiment.upload, folder, log))
        try:
            summary = _train(
                setup,
                log,
                checkpoints,
                uploads,
                signals,
                changed=begun["changed"],
                copied_from=checkpoint,
                began_s=began_s,
            )
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
    initial = lower_initial_state(setup.recipe, seed=experiment.seed, programs=setup.programs)
    shapes = abstract_state(initial, setup.mesh, setup.recipe.sharding)
    saver = Saver(setup, log, checkpoints, uploads, num_parameters=num_elements(shapes.state.params))
    if already := saver.finished_before():
        uploads.offer(checkpoints.best)
        uploads.finish()
        if log.last != "run_complete":  # the last job was killed after its last checkpoint
            log.write("run_complete", reason="all updates done", **already)
        return already
    announce(setup, log, shapes, changed=changed)
    uploads.offer(checkpoints.best)  # an upload of the last job may have failed
    if saver.forgets:
        log.write("warning", message=saver.forgets)
    is_new, first = checkpoints.latest is None, checkpoints.latest or 0
    given = given_weights(setup, shapes) if is_new else None
    timetable = Timetable(
        training,
        groups,
        first=first,
        num_updates=setup.num_updates,
        began_s=began_s,
        owes_validation=saver.owes_validation,
    )
    if timetable.is_over():  # before the compilation, which can take minutes
        log.write("job_stopped", update=first, reason=HOURS_OVER)
        raise Stopped(_stopped(setup, HOURS_OVER, first), HOURS_OVER)
    validator = Validator(setup, log, shapes, best=saver.best, num=saver.num_without_gain)
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(initial.compile) if is_new else None
        steps = _compile(setup, log, shapes, validator)
    if drawing:
        state, average = new_state(setup, log, drawing.result(), given)
    else:
        names = {name for name, _, _ in changed or ()}
        state, average = restored_state(setup, log, checkpoints, shapes, changed=names, copied_from=copied_from)
    if training.pre_allocate:
        log.write("pre_allocated", **pre_allocate(setup, steps, state))
    rejected = RejectedAudio(
        setup.folder, log, utterances=setup.data.train.index.utterances, limit=training.limits.max_rejected
    )
    reporter = Reporter(setup, log, loss_terms=steps.loss_terms)
    timed = reporter.throughput.timed
    signals.wait_for_save()
    with ExitStack() as stack:
        stack.enter_context(profile := Profile(training, setup.folder, log))
        data_state = state_of_data(checkpoints)
        batches = stack.enter_context(open_data(setup, groups.positions(first).start, data_state))
        update = first
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
                    state = with_wer(state, found.get("wer"))
                    summary = saver.summary(found, update, best=validator.best)
                signal = signals.agreed()
            elif not signal and due.samples:
                validator.show_samples(average, update)
            ends = signal or due.ends or validator.no_gain()
            if summary or (update > first and (ends or due.saves or (due.at_line and saver.is_overdue()))):
                saver.save(
                    update,
                    state,
                    average,
                    summary=summary,
                    best=validator.best,
                    num_without_gain=validator.num_without_gain,
                    data_state=data_state,
                )
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
                stack.enter_context(watch_compilations(functools.partial(log.write, "recompiled")))
    return _ended(setup, log, state, ends=ends, update=update, summary=summary)


def _parts(setup: Setup, loaded: LoadedBatch) -> list[Part]:
    """Returns the parts of a batch on the devices, each with its shape and the batch's position in the plan."""
    parts = setup.layout.parts(loaded.batch, setup.data.buckets[loaded.bucket].batch_size)
    return [(setup.shapes[loaded.bucket], global_batch(part, setup.mesh), np.int32(loaded.position)) for part in parts]


def _ended(
    setup: Setup, log: EventLog, state: TrainState, *, ends: str, update: int, summary: dict[str, Any] | None
) -> dict[str, Any]:
    """Writes the last event and returns the summary of the run, or `continues` if the epochs of the job are done."""
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
    return f"{reason}: {saved}; python -m asr_jax.train --run-dir {quoted(setup.folder)} continues the run"


def _compile(setup: Setup, log: EventLog, shapes: InitialState, validator: Validator) -> CompiledSteps:
    """Compiles all programs of training and validation before the first update."""
    started_s, number = time.monotonic(), itertools.count(1)
    log.write("compile_start", shapes=len(setup.shapes))
    validator.prepare()
    steps = setup.compiled(
        shapes,
        lambda bucket: log.write("compiled", number=next(number), shapes=len(setup.shapes), bucket=vars(bucket)),
    )
    validator.wait()
    log.write("compile", rows=steps.table, memory=steps.memory, seconds=round(time.monotonic() - started_s, 1))
    report_native(log)
    return steps
