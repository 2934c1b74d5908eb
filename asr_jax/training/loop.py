"""The training loop: validate → save → take a batch → step, in the order of the plan."""

import functools
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from asr_jax.checkpoints.store import Checkpoints, refuse_damaged
from asr_jax.config import Experiment, differences, load_experiment, save_experiment, to_json
from asr_jax.core.errors import RunError
from asr_jax.core.meshes import global_batch
from asr_jax.core.processes import is_main, on_main
from asr_jax.core.pytrees import Tree, num_elements
from asr_jax.data.source import BatchSource, open_batches
from asr_jax.observe.curves import draw_curves
from asr_jax.observe.events import EventLog, Sink
from asr_jax.observe.progress import ProgressView
from asr_jax.observe.tensorboard import TensorBoard
from asr_jax.training import run as folders
from asr_jax.training.compile import abstract_training, compile_steps, initial_training
from asr_jax.training.evaluate import Decoder, evaluate, samples, used_buckets
from asr_jax.training.recompilation import CompileWatch
from asr_jax.training.reporting import Reporter, Unread, report_skipped
from asr_jax.training.setup import Setup, set_up
from asr_jax.training.trained import save_plan, tokenizer_files

# Updates that may be dispatched before the oldest of them must be done: the device is never idle, and batches do not
# pile up in its memory.
IN_FLIGHT = 2


def train(experiment: Experiment) -> dict[str, Any]:
    """Trains or continues the run of an experiment; gives the summary that its last event holds.

    Raises: UserError before anything is written; RunError where work that had begun cannot go on.
    """
    folder = Path(on_main(lambda: str(folders.find_run(experiment))))
    experiment = replace(experiment, run_dir=str(folder), fresh=False)
    setup = set_up(experiment, folder)
    training, sinks = experiment.training, list[Sink]()
    with ExitStack() as stack:
        begun = on_main(lambda: _begin(setup, stack))
        if is_main():
            sinks = [
                ProgressView(plain_every=training.log_every, num_samples=training.num_samples),
                TensorBoard(folder / folders.TENSORBOARD),
            ]
        log = stack.enter_context(EventLog(folder / folders.EVENTS, enabled=is_main(), sinks=sinks))
        for line in begun["refused"]:
            log.write("warning", message=line)
        checkpoints = stack.enter_context(
            Checkpoints(
                folder / folders.CHECKPOINTS, keep_last=training.keep_last, keep_best=training.keep_best,
                milestones=training.milestones,
            )
        )  # fmt: skip
        try:
            summary = _train(setup, log, checkpoints, changed=begun["changed"])
        except BaseException as error:
            log.write("run_failed", reason=f"{type(error).__name__}: {error}")
            raise
    if is_main():
        draw_curves(folder / folders.EVENTS, folder / folders.CURVES)
    return summary


def _begin(setup: Setup, stack: ExitStack) -> dict[str, Any]:
    """Takes hold of the folder and writes what a run needs, its experiment last: that makes it a run.

    Gives the settings that have `changed` since, None for a new run, and a line for each checkpoint that was `refused`.
    """
    folder, changed = setup.folder, None
    stack.enter_context(folders.held(folder))
    save_plan(setup.train, folder)
    setup.tokenizer.save(folder / folders.TOKENIZER)
    if (folder / folders.EXPERIMENT).exists():
        changed = differences(load_experiment(folder / folders.EXPERIMENT), setup.experiment)
        changed = [change for change in changed if change[0] not in ("run_dir", "fresh")]
    else:
        (folder / folders.SKIPPED).unlink(missing_ok=True)
        folders.append_skipped(folder, setup.train.dropped.entries)
    save_experiment(setup.experiment, folder / folders.EXPERIMENT)
    return {"changed": changed, "refused": refuse_damaged(folder / folders.CHECKPOINTS)}


def _train(
    setup: Setup, log: EventLog, checkpoints: Checkpoints, *, changed: list[tuple[str, Any, Any]] | None
) -> dict[str, Any]:
    experiment, training, plan = setup.experiment, setup.experiment.training, setup.train.plan
    scales = {name: head.scale for name, head in experiment.model.heads.items()}
    state_shapes, average_shapes = abstract_training(setup.model, setup.optimizer, mesh=setup.mesh)
    started_s, latest = time.monotonic(), checkpoints.latest
    if latest is not None and latest >= setup.num_updates:
        # The folder may have another name now than when the summary was written.
        places = {"folder": str(setup.folder), "checkpoint": str(checkpoints.path(latest))}
        return checkpoints.meta(latest)["summary"] | places | {"already": True}
    num_parameters = num_elements(state_shapes.params)
    _announce(setup, log, num_parameters=num_parameters, changed=changed)
    log.write("compile_start", shapes=len(plan.buckets))
    steps = compile_steps(
        setup.model, setup.optimizer, plan.buckets, scales=scales, schedule=setup.schedule,
        ema_decay=training.ema_decay, mesh=setup.mesh, num_batches=training.accumulate,
    )  # fmt: skip
    decoder = Decoder(setup.model, setup.tokenizer, mesh=setup.mesh, variables=average_shapes)
    decoder.prepare(used_buckets(setup.validation))
    decoder.wait()
    log.write("compile", rows=steps.table, seconds=round(time.monotonic() - started_s, 1))
    if latest is None:
        state, average = initial_training(setup.model, setup.optimizer, seed=experiment.seed, mesh=setup.mesh)
        update = position = 0
    else:
        state, average, meta = checkpoints.restore(latest, state=state_shapes, average=average_shapes)
        update, position = latest, int(meta["data_position"])
        log.write("resumed", update=update, data_position=position, path=checkpoints.path(latest))
    accumulated = steps.begin(state)
    source = BatchSource(setup.train.index, plan, process_index=jax.process_index(), num_processes=jax.process_count())
    unread, reporter = Unread(setup, log), Reporter(setup, log, loss_terms=steps.loss_terms)
    timed, first, watch = reporter.throughput.timed, update, CompileWatch(functools.partial(_recompiled, log))
    with ExitStack() as stack:
        batches = stack.enter_context(
            open_batches(source, start=position, workers=experiment.data.workers, threads=experiment.data.threads)
        )
        while True:
            finished = update == setup.num_updates
            if finished or update % training.log_every == 0 or update % training.validate_every == 0:
                _report_saved(log, checkpoints)
                unread.flush()
                reporter.flush(update=update, epoch=max(position - 1, 0) // plan.batches_per_epoch + 1, scales=scales)
            if finished or (update > first and update % training.validate_every == 0):
                found = _validate(setup, log, decoder, average, update)
                summary = _summary(
                    setup, checkpoints, found, update, seconds=log.elapsed_s, num_parameters=num_parameters
                )
                meta = {
                    "data_position": position, "experiment": to_json(experiment), "summary": summary,
                    "tokenizer": tokenizer_files(setup.folder),
                }  # fmt: skip
                checkpoints.save(update, state=state, average=average, meta=meta, wer=found["wer"])
            if finished:
                checkpoints.wait()
                _report_saved(log, checkpoints)
                break
            with timed("waiting"):
                group = [next(batches) for _ in range(training.accumulate)]
            with timed("host"):
                buckets = [plan.buckets[plan[loaded.position].bucket] for loaded in group]
                shards = [global_batch(loaded.batch, setup.mesh) for loaded in group]
                each = [steps.weights[bucket](batch) for bucket, batch in zip(buckets, shards, strict=True)]
                weights = steps.add_weights(each)
                for loaded, bucket, batch in zip(group, buckets, shards, strict=True):
                    number = np.int32(loaded.position)
                    accumulated = steps.accumulate[bucket](state, accumulated, batch, weights, number)
                state, average, accumulated, report = steps.apply_update(state, average, accumulated)
            position, update = group[-1].position + 1, update + 1
            unread.add(group)
            reporter.add(report, group)
            with timed("device"):
                reporter.wait(IN_FLIGHT)
            if update == first + 1:
                stack.enter_context(watch)
    log.write("run_complete", reason="all updates done", **summary)
    return summary


def _recompiled(log: EventLog, function: str, seconds: float, reason: str) -> None:
    log.write("recompiled", function=function, seconds=round(seconds, 2), reason=reason)


def _report_saved(log: EventLog, checkpoints: Checkpoints) -> None:
    done = checkpoints.finished()
    if done is not None:
        log.write("checkpoint_saved", update=done, path=checkpoints.path(done))


def _announce(setup: Setup, log: EventLog, *, num_parameters: int, changed: list[tuple[str, Any, Any]] | None) -> None:
    index, plan, dropped = setup.train.index, setup.train.plan, setup.train.dropped
    log.write(
        "run_start", run=setup.experiment.name, num_updates=setup.num_updates, num_parameters=num_parameters,
        num_epochs=round(setup.num_updates / setup.updates_per_epoch, 2), num_devices=setup.mesh.size,
        device=setup.mesh.devices.flat[0].device_kind, records=len(index), hours=index.hours,
        vocabulary=setup.tokenizer.vocab_size, padding_share=plan.padding_share, data=setup.train.fingerprint(),
    )  # fmt: skip
    for name, old, new in changed or ():
        log.write("setting_changed", setting=name, old=old, new=new)
    if dropped.records and changed is None:
        log.write("skipped", count=sum(dropped.records.values()), reasons=dropped.records)


def _validate(setup: Setup, log: EventLog, decoder: Decoder, average: Tree, update: int) -> dict[str, Any]:
    data, settings = setup.validation, setup.experiment.data
    weights = "ema" if setup.experiment.training.ema_decay else "live"
    log.write("validation_start", update=update, weights=weights, utterances=len(data.index))
    counts, found = evaluate(decoder, average, data, workers=0, threads=settings.threads)
    shown = samples(data, found, setup.experiment.training.num_samples)
    report_skipped(setup.folder, log, found.skipped)
    if counts["wer"] is None:
        raise RunError("no word of the validation set could be scored: its audio cannot be read, see skipped.jsonl")
    log.write("validation", update=update, weights=weights, samples=shown, **counts)
    return counts


def _summary(
    setup: Setup, checkpoints: Checkpoints, found: dict[str, Any], update: int, *, seconds: float, num_parameters: int
) -> dict[str, Any]:
    best = checkpoints.best_wer
    return {
        "update": update,
        "wer": found["wer"],
        "cer": found["cer"],
        "best_wer": min(best, found["wer"]) if best is not None else found["wer"],
        "seconds": round(seconds, 1),
        "checkpoint": str(checkpoints.path(update)),
        "folder": str(setup.folder),
        "parameters": num_parameters,
    }
