"""Benchmark of a training step: `python -m benchmarks.steps --config FILE [--field.name VALUE …]`.

Measures, on the first batch of each bucket, reading, the front-end with augmentation, the forward pass with the loss,
the backward pass, and the update; medians in milliseconds. Figures depend on the machine and its load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asr_jax.cli.command_line import parse_experiment

if TYPE_CHECKING:
    from asr_jax.training.setup import Setup

REPEATS = 7


def main(arguments: Sequence[str]) -> None:
    experiment = parse_experiment(arguments, prog="python -m benchmarks.steps")

    from asr_jax.observe.tables import print_table
    from asr_jax.training.run import find_run
    from asr_jax.training.setup import set_up

    setup = set_up(experiment, find_run(experiment))
    rows = step_times(setup)
    print_table(
        rows, title=f"{experiment.name}: milliseconds per batch, padding {setup.data.train.plan.padding_share:.1%}"
    )


def step_times(setup: Setup) -> list[dict[str, Any]]:
    """Measures each part of a step; returns one row for each bucket, in milliseconds."""
    import jax
    import numpy as np

    from asr_jax.core.meshes import global_batch
    from asr_jax.core.random_streams import random_streams
    from asr_jax.data.loading.source import BatchSource
    from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
    from asr_jax.training.programs import compile_steps

    lowered = lower_initial_state(setup.recipe, seed=setup.experiment.seed)
    shapes = abstract_state(lowered, setup.mesh, setup.recipe.sharding)
    steps = compile_steps(
        setup.recipe, setup.shapes, shapes, scale=setup.data.train.index.scale, mesh=setup.mesh,
        sounds=setup.data.sounds,
    )  # fmt: skip
    state, average = initial_state(lowered.compile(), setup.mesh, setup.recipe.sharding)
    source, rows = BatchSource(setup.data.train.index, setup.data.train.plan, setup.layout), []

    def forward(params: Any, batch: Any, method: str) -> Any:
        streams = random_streams(state.key, state.updates)
        variables = {"params": params, "batch_stats": state.batch_stats, "sounds": setup.data.sounds}
        if method == "features":
            return setup.model.apply(variables, batch, step=state.updates, method="augmented", rngs=streams)
        return setup.model.apply(variables, batch, step=state.updates, mutable=["batch_stats"], rngs=streams)

    jitted = jax.jit(forward, static_argnums=2)
    for k, bucket in enumerate(setup.shapes):
        in_epoch = range(setup.data.train.plan.batches_per_epoch)
        position = next((p for p in in_epoch if setup.data.train.plan[p].bucket == k), None)
        if position is None:  # batches of any length may have this shape in other epochs only
            continue
        read_ms = _median_ms(source.__getitem__, position)
        first = setup.layout.parts(source[position].batch, setup.data.train.plan.buckets[k].batch_size)[0]
        batch = global_batch(first, setup.mesh)
        features_ms = _median_ms(jitted, state.params, batch, "features")
        forward_ms = _median_ms(jitted, state.params, batch, "loss")
        parts = [(bucket, batch, np.int32(0))]
        both_ms = _median_ms(steps.accumulate, state, parts)
        accumulated = steps.accumulate(state, parts)

        def update(accumulated: Any = accumulated) -> Any:
            nonlocal state, average
            state, average, report = steps.apply_update(state, average, accumulated)
            return report

        update_ms = _median_ms(update)
        rows.append(
            {
                "seconds": f"{bucket.length / setup.data.train.index.scale.per_s:.2f}",
                "rows": bucket.batch_size,
                "read": f"{read_ms:.1f}",
                "front-end": f"{features_ms:.1f}",
                "forward": f"{forward_ms - features_ms:.1f}",
                "backward": f"{both_ms - forward_ms:.1f}",
                "update": f"{update_ms:.1f}",
                "step": f"{both_ms + update_ms:.1f}",
            }
        )
    return rows


def _median_ms(call: Callable[..., Any], *arguments: Any) -> float:
    import jax

    times = []
    for _ in range(REPEATS + 2):  # two warm-ups: the first call compiles
        start = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        times.append(time.perf_counter() - start)
    return 1000 * sorted(times[2:])[REPEATS // 2]


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
