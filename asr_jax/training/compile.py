"""All shapes are compiled before step 0, so that nothing compiles, and no memory runs out, at hour 30."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, by_rows, replicated
from asr_jax.core.pytrees import Tree, num_bytes, num_elements
from asr_jax.data.buckets import Bucket, largest_first
from asr_jax.models.base import Recogniser
from asr_jax.training.state import TrainState, average_of, initial_state
from asr_jax.training.step import accumulate, added_weights, apply_update, batch_weights, nothing_accumulated

Compiled = Callable[..., Any]

SMALLER_BATCHES = (
    "lower --data.buckets.batch-seconds, or --data.filters.max-duration-s where one long recording fills the batch"
)


@dataclass(frozen=True)
class CompiledSteps:
    """Executables; one that is called with another shape or sharding raises instead of compiling."""

    weights: dict[Bucket, Compiled]
    accumulate: dict[Bucket, Compiled]
    apply_update: Compiled
    loss_terms: tuple[str, ...]
    """Names of the sums that are losses; the others are metrics."""
    begin: Compiled
    """Zeros to accumulate into."""
    add_weights: Compiled
    """The weights of each term over a list of batches."""
    table: list[dict[str, Any]]
    """A row per bucket: shape, rows, parameters, FLOPs and bytes, by XLA's own account."""


def initial_training(
    model: Recogniser, optimizer: optax.GradientTransformation, *, seed: int, mesh: Mesh
) -> tuple[TrainState, Tree]:
    """A new run's state and average, the same on every device."""
    # Drawn on one device and copied: what several would draw together might be something else.
    begun = jax.jit(lambda: _begin_training(model, optimizer, seed))()
    state, average = jax.device_put(begun, replicated(mesh))
    return state, average


def _begin_training(model: Recogniser, optimizer: optax.GradientTransformation, seed: int) -> tuple[TrainState, Tree]:
    state = initial_state(model, optimizer, seed=seed)
    return state, jax.tree.map(jnp.copy, average_of(state))


def abstract_training(
    model: Recogniser, optimizer: optax.GradientTransformation, *, mesh: Mesh
) -> tuple[TrainState, Tree]:
    """Shapes, types and shardings of a state and its average, without computing them: to compile or restore with."""
    shapes: tuple[TrainState, Tree] = abstract(
        jax.eval_shape(lambda: _begin_training(model, optimizer, 0)), replicated(mesh)
    )
    return shapes


def compile_steps(
    model: Recogniser,
    optimizer: optax.GradientTransformation,
    buckets: Sequence[Bucket],
    *,
    scales: Mapping[str, float],
    schedule: optax.Schedule,
    ema_decay: float,
    mesh: Mesh,
    num_batches: int = 1,
    tell: Callable[[Bucket], None] = lambda bucket: None,
) -> CompiledSteps:
    """Compiles every bucket, largest first, several at a time. What does not fit into memory shows here.

    `num_batches`: of an update. `tell` is called, in this thread, for each bucket that is done.
    """
    same = replicated(mesh)
    state, average = abstract_training(model, optimizer, mesh=mesh)
    weigh = functools.partial(batch_weights, model)
    example = abstract_batch(buckets[0], mesh)
    weights = abstract(jax.eval_shape(weigh, example), same)
    sums = jax.eval_shape(lambda s, b: _sums(model, s, b), state, example)
    empty = abstract(jax.eval_shape(lambda s: nothing_accumulated(s, sums), state), same)
    position = jax.ShapeDtypeStruct((), jnp.int32, sharding=same)

    gradients = jax.jit(functools.partial(accumulate, model, scales), donate_argnums=1, out_shardings=same)
    applying = functools.partial(apply_update, optimizer, schedule, ema_decay, tuple(weights))
    update = jax.jit(applying, donate_argnums=(0, 1, 2), out_shardings=same)
    ordered = [buckets[i] for i in largest_first(buckets)]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 4)) as pool:
        jobs = {
            bucket: pool.submit(_compile, gradients, state, empty, abstract_batch(bucket, mesh), weights, position)
            for bucket in ordered
        }
        updating = pool.submit(_compile, update, state, average, empty)
        beginning = pool.submit(_compile, jax.jit(lambda s: nothing_accumulated(s, sums), out_shardings=same), state)
        adding = pool.submit(_compile, jax.jit(added_weights, out_shardings=same), [weights] * num_batches)
        weighing = jax.jit(weigh, out_shardings=same)
        weighed = {b: pool.submit(_compile, weighing, abstract_batch(b, mesh)) for b in ordered}
        compiled = {}
        for bucket, job in jobs.items():
            compiled[bucket] = _result(job, bucket)
            tell(bucket)
        table = [_row(bucket, compiled[bucket], state, model) for bucket in ordered]
        _check_memory(table, num_bytes(average), mesh)
        return CompiledSteps(
            weights={bucket: job.result() for bucket, job in weighed.items()},
            accumulate=compiled,
            apply_update=updating.result(),
            loss_terms=tuple(weights),
            begin=beginning.result(),
            add_weights=adding.result(),
            table=table,
        )


def abstract_batch(bucket: Bucket, mesh: Mesh) -> Batch:
    """The shapes of a bucket's global batch of audio."""
    rows = by_rows(mesh)

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((bucket.batch_size, *shape), dtype, sharding=rows)

    return Batch(
        audio=array((bucket.num_samples,), np.int16),
        features=None,
        lengths=array((), np.int32),
        tokens=array((bucket.num_tokens,), np.int32),
        token_lengths=array((), np.int32),
        weights=array((), np.float32),
        records=array((), np.int32),
    )


def _compile(function: Any, *abstract: Any) -> Compiled:
    return function.lower(*abstract).compile()


def _result(job: Future[Compiled], bucket: Bucket) -> Compiled:
    """Raises: UserError that names the bucket where XLA says that it does not fit."""
    try:
        return job.result()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"the batch of {bucket.batch_size} × {bucket.num_samples:,} samples does not fit into the device's memory: "
            f"{str(error).partition(chr(10))[0]}; {SMALLER_BATCHES}"
        ) from error


def _check_memory(table: Sequence[Mapping[str, Any]], average_bytes: int, mesh: Mesh) -> None:
    """Raises: UserError where the largest bucket, with what lies beside it, needs more than a device has."""
    limit = (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")  # nothing on a CPU
    worst = max(table, key=lambda row: row["bytes"])
    needed = worst["bytes"] + average_bytes
    if limit and needed > limit:
        raise UserError(
            f"the batch of {worst['rows']} × {worst['seconds']} s needs {needed / 1e9:.1f} GB with all that lies "
            f"beside it, and a device has {limit / 1e9:.1f} GB; {SMALLER_BATCHES}"
        )


def _sums(model: Recogniser, state: TrainState, batch: Batch) -> Any:
    return model.apply({"params": state.params, "batch_stats": state.batch_stats}, batch, step=None)


def _row(bucket: Bucket, compiled: Any, state: TrainState, model: Recogniser) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    # Not `peak_memory_in_bytes`: on CPU it is wrong by far, while this sum is what resident memory grows by.
    used = (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
    seconds = bucket.num_samples / model.front_end.rate_hz
    return {
        "seconds": round(seconds, 2),
        "rows": bucket.batch_size,
        "labels": bucket.num_tokens,
        "audio_s": round(seconds * bucket.batch_size, 1),
        "frames": int(model.output_length(bucket.num_samples)),
        "parameters": num_elements(state.params),
        "flops": float((compiled.cost_analysis() or {}).get("flops", float("nan"))),
        "bytes": int(used),
    }
