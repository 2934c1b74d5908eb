"""Previews of a run: its learning rate schedule, and a dry run with one batch of each shape."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from asr_jax.config import Experiment
from asr_jax.core import devices
from asr_jax.core.meshes import global_batch, num_row_devices
from asr_jax.core.names import counted
from asr_jax.core.processes import is_main
from asr_jax.core.pytrees import num_elements
from asr_jax.data.batching.buckets import largest_first
from asr_jax.data.loading.source import BatchSource
from asr_jax.observe.progress import ProgressView, memory_line
from asr_jax.observe.tables import print_table, quantity
from asr_jax.optim.schedules import RunLength
from asr_jax.training import run as folders
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.initial_weights import read_initial_weights
from asr_jax.training.reporting import report_data, report_filtered
from asr_jax.training.setup import check_length, set_up
from asr_jax.training.step import Accumulated, checked, summed, total_loss

NUM_POINTS = 20


def show_schedule(experiment: Experiment, png: Path | None = None) -> None:
    """Prints the learning rate at some updates, and draws the schedule.

    The data are read only if the length of the run or the schedule is in epochs.

    Raises:
        UserError: If the data are needed and cannot be read.
    """
    schedule, training = experiment.optim.schedule, experiment.training
    check_length(training.num_updates, training.num_epochs)
    counts_epochs = bool(training.num_epochs) or schedule.counts_epochs
    if counts_epochs:
        setup = set_up(experiment, folders.find_run(experiment))
        length = RunLength(setup.num_updates, setup.updates_per_epoch)
    else:
        length = RunLength(training.num_updates, training.num_updates)  # nothing is in epochs, so the data are not read
    rate = jax.jit(schedule.build(length))
    points = sorted({round(p) for p in np.linspace(0, length.num_updates - 1, NUM_POINTS)} | {1})
    rows = [
        {"update": update + 1, "learning rate": f"{float(rate(update)):.4g}"}
        | ({"epoch": int(update // length.updates_per_epoch) + 1} if counts_epochs else {})
        for update in points
    ]
    print_table(rows, title=f"{experiment.name}: {type(schedule).__name__}, {counted(length.num_updates, 'update')}")
    if not png:
        return
    updates = np.unique(np.linspace(0, length.num_updates - 1, 1000).round())
    figure = Figure(figsize=(8, 3.5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(updates + 1, np.asarray(jax.vmap(schedule.build(length))(updates)), color="#3a8f5c", linewidth=2)
    axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
    axes.set_title(f"{experiment.name}: {type(schedule).__name__}", loc="left", parse_math=False)
    figure.savefig(png)
    print(png)


def dry_run(experiment: Experiment) -> None:
    """Reports the data, compiles, and computes the loss and gradient of one batch of each shape. Writes nothing.

    Raises:
        UserError: If a run could not start.
    """
    setup = set_up(experiment, folders.find_run(experiment), source=folders.source_of(experiment))
    if is_main():
        print(f"on {devices.description()}")
        view = ProgressView()

        def show(name: str, **data: Any) -> None:
            view({"event": name, "timestamp_ms": 0, "data": data})

        report_data(setup, show)
        for planned in (setup.data.train, setup.data.validation):
            report_filtered(planned.rejections, show)
    if experiment.primary_decoding:
        experiment.primary_decoding.host_stage(
            setup.data.tokenizer
        )  # raises an error if one of its files cannot be read
    lowered = lower_initial_state(setup.recipe, seed=experiment.seed, programs=setup.programs)
    shapes = abstract_state(lowered, setup.mesh, setup.recipe.sharding)
    if experiment.init.path:
        given = read_initial_weights(experiment, setup.data.tokenizer, setup.recipe.of_model(shapes.state))
        print("\n".join(given.account.lines()))
    steps = setup.compiled(shapes)
    if is_main():
        print(memory_line(steps.memory))
    state, _ = initial_state(lowered.compile(), setup.mesh, setup.recipe.sharding)

    @jax.jit
    def norm_of(accumulated: Accumulated) -> Float[Array, ""]:
        return optax.tree.norm(checked(summed(accumulated, num_devices=num_row_devices(setup.mesh))).grads)

    source = BatchSource(setup.data.train.index, setup.data.train.plan, setup.layout)
    rows = []
    plan = setup.data.train.plan
    for row, number in zip(steps.table, largest_first(setup.shapes), strict=True):
        shape = setup.shapes[number]
        position = next((p for p in range(plan.batches_per_epoch) if plan[p].bucket == number), None)
        found: dict[str, Any] = {}
        if position is not None:
            first = setup.layout.parts(source[position].batch, plan.buckets[number].batch_size)[0]
            of_batch = steps.accumulate(state, [(shape, global_batch(first, setup.mesh), np.int32(position))])
            sums = jax.device_get(of_batch.sums)
            loss = total_loss(sums, {name: sums[name].weight for name in steps.loss_terms}, setup.recipe.scales)
            found = {"loss": float(loss), "gradient_norm": float(norm_of(of_batch))}
        rows.append({name: row[name] for name in ("seconds", "rows", "labels", "memory_bytes")} | found)
    if is_main():
        print_table(rows, title=f"{experiment.name}, dry run: one batch of each shape with the initial weights")
        parameters = quantity(num_elements(shapes.state.params))
        is_sample = bool(setup.data.train.shards)
        of_sample = " in the sample of the shards" if is_sample else ""
        per_epoch = "" if is_sample else f", {setup.updates_per_epoch:,.4g} per epoch"
        print(
            f"{parameters} parameters; {counted(len(setup.data.train.index), 'utterance')}, "
            f"{setup.data.train.index.hours:,.2f} h{of_sample}; {counted(setup.num_updates, 'update')}{per_epoch}; "
            "nothing was written"
        )
