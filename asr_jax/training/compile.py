"""Compilation of the training programs for all batch shapes before the first update.

Later updates therefore do not compile, and a batch that does not fit into memory is found at the start.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, UInt32

from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, replicated
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import num_bytes, num_elements
from asr_jax.core.random_streams import random_streams
from asr_jax.data.batching.buckets import Bucket, Scale, largest_first
from asr_jax.inference.by_shape import abstract_batch
from asr_jax.models.base import Recogniser
from asr_jax.models.terms import batch_denominators
from asr_jax.training.beginning import Beginning
from asr_jax.training.state import TrainState
from asr_jax.training.step import (
    Denominators,
    Recipe,
    accumulate,
    added_denominators,
    apply_update,
    nothing_accumulated,
)

Compiled = Callable[..., Any]

SMALLER_BATCHES = (
    "compute each batch in parts (--training.split 2), lower --data.buckets.batch-seconds, or lower "
    "--data.filters.max-duration-s if one long recording fills the batch"
)


@dataclass(frozen=True)
class CompiledSteps:
    """Executables of training. A call with another shape or sharding raises an error instead of compiling."""

    denominators: dict[Bucket, Compiled]
    accumulate: dict[Bucket, Compiled]
    apply_update: Compiled
    loss_terms: tuple[str, ...]
    """Names of the sums that are loss terms; the others are metrics."""
    begin: Compiled
    """Program that returns zeros to accumulate into."""
    add_denominators: Compiled
    """Program that adds the denominators of each loss term over a list of batches."""
    no_denominators: Denominators
    """Zeros, for the missing batches of an update with fewer batches."""
    table: list[dict[str, Any]]
    """A row per bucket: shape, rows, parameters, memory according to XLA's analysis in bytes, and floating-point
    operations of products, both on one device."""
    memory: dict[str, int | None]
    """Memory of a device in bytes: `maximum_bytes`, needed by the largest bucket with the averaged parameters, and
    `limit_bytes`, which is None if the device reports no limit."""


class Compiling(NamedTuple):
    """A program that is being compiled."""

    future: Future[Compiled]
    flops: float
    """Floating-point operations on all devices together, as `core.programs.products` counts them."""


def compile_steps(
    recipe: Recipe,
    buckets: Sequence[Bucket],
    shapes: Beginning,
    *,
    scale: Scale,
    mesh: Mesh,
    num_batches: int = 1,
    sounds: Mapping[str, np.ndarray] = MappingProxyType({}),
    programs: Programs = TRACED,
    tell: Callable[[Bucket], None] = lambda bucket: None,
) -> CompiledSteps:
    """Compiles the training programs of all buckets, largest bucket first, several at a time.

    Args:
        recipe: Settings of the training step.
        buckets: Batch shapes.
        shapes: Output of `abstract_beginning`.
        scale: Units of the buckets' lengths.
        mesh: Devices.
        num_batches: Number of batches of an update.
        sounds: Recordings that augmentations add. They are copied to every device.
        programs: Cache of traced programs.
        tell: Called in this thread with each bucket that is compiled.

    Raises:
        UserError: If a batch does not fit into the memory of a device.
    """
    same = replicated(mesh)
    state, average, sums = shapes
    recipe = replace(recipe, model=recipe.model.clone(num_devices=mesh.size))

    def denominators_of(batch: Batch, key: UInt32[Array, "2"], updates: Int[Array, ""]) -> Denominators:
        return batch_denominators(recipe.model, batch, random_streams(key, updates))

    example = abstract_batch(buckets[0], mesh, scale)
    position = jax.ShapeDtypeStruct((), jnp.int32, sharding=same)
    denominators = abstract(jax.eval_shape(denominators_of, example, state.key, state.updates), same)
    empty = abstract(jax.eval_shape(lambda s: nothing_accumulated(recipe, s, sums), state), same)
    on_device = jax.device_put(dict(sounds), same)

    ordered = [buckets[i] for i in largest_first(buckets)]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 4)) as pool:

        def compiling(name: str, function: Any, *arguments: Any, donate: tuple[int, ...] = ()) -> Compiling:
            # Traced in this thread: threads that trace at the same time only wait for each other.
            program = programs.lower(name, function, *arguments, donate_argnums=donate, out_shardings=same)
            return Compiling(pool.submit(program.lowered.compile), program.flops)

        gradients = functools.partial(accumulate, recipe)
        jobs = {
            bucket: compiling(
                "accumulate",
                gradients,
                state,
                empty,
                abstract_batch(bucket, mesh, scale),
                denominators,
                position,
                abstract(on_device, same),
                donate=(1,),
            )
            for bucket in ordered
        }
        updating = compiling(
            "apply_update", functools.partial(apply_update, recipe), state, average, empty, donate=(0, 1, 2)
        )
        beginning = compiling("begin_update", lambda s: nothing_accumulated(recipe, s, sums), state)
        adding = compiling("add_denominators", added_denominators, [denominators] * num_batches)
        of_batches = {
            bucket: compiling(
                "batch_denominators", denominators_of, abstract_batch(bucket, mesh, scale), state.key, state.updates
            )
            for bucket in ordered
        }
        compiled = _results(jobs, pool, tell)
        table = [
            _row(bucket, compiled[bucket], state, recipe.model, scale) | {"flops": jobs[bucket].flops / mesh.size}
            for bucket in ordered
        ]
        memory = _checked_memory(table, num_bytes(average), mesh)
        return CompiledSteps(
            denominators={bucket: job.future.result() for bucket, job in of_batches.items()},
            accumulate={bucket: _with_sounds(program, on_device) for bucket, program in compiled.items()},
            apply_update=updating.future.result(),
            loss_terms=tuple(denominators),
            begin=beginning.future.result(),
            add_denominators=adding.future.result(),
            no_denominators=jax.device_put({name: np.zeros((), np.float32) for name in denominators}, same),
            table=table,
            memory=memory,
        )


def _with_sounds(program: Compiled, sounds: Mapping[str, jax.Array]) -> Compiled:
    return lambda *arguments: program(*arguments, sounds)


def _results(
    jobs: Mapping[Bucket, Compiling], pool: ThreadPoolExecutor, tell: Callable[[Bucket], None]
) -> dict[Bucket, Compiled]:
    """Waits for the executables of all buckets.

    Raises:
        UserError: If XLA runs out of memory while compiling a bucket. The message has the bucket's shape.
    """
    compiled = {}
    for bucket, job in jobs.items():
        try:
            compiled[bucket] = job.future.result()
        except BaseException as error:
            pool.shutdown(cancel_futures=True)  # the others are not needed
            if not isinstance(error, jax.errors.JaxRuntimeError) or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"the batch of {bucket.batch_size} × {bucket.length:,} samples or frames does not fit into the "
                f"device's memory: {str(error).partition(chr(10))[0]}; {SMALLER_BATCHES}"
            ) from error
        tell(bucket)
    return compiled


def _checked_memory(table: Sequence[Mapping[str, Any]], average_bytes: int, mesh: Mesh) -> dict[str, int | None]:
    """Returns `CompiledSteps.memory`.

    Raises:
        UserError: If the largest bucket and the averaged parameters need more memory than a device has.
    """
    limit = (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")  # CPUs report no limit.
    worst = max(table, key=lambda row: row["memory_bytes"])
    needed = worst["memory_bytes"] + average_bytes
    if limit and needed > limit:
        raise UserError(
            f"the batch of {worst['rows']} × {worst['seconds']} s needs {needed / 1e9:.1f} GB with the training "
            f"state, and a device has {limit / 1e9:.1f} GB; {SMALLER_BATCHES}"
        )
    return {"maximum_bytes": needed, "limit_bytes": limit}


def _row(bucket: Bucket, compiled: Any, state: TrainState, model: Recogniser, scale: Scale) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    # `peak_memory_in_bytes` is far off on CPUs. The resident memory grows by this sum.
    used = (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
    seconds = bucket.length / scale.per_s
    return {
        "seconds": round(seconds, 2),
        "rows": bucket.batch_size,
        "labels": bucket.num_tokens,
        "audio_s": round(seconds * bucket.batch_size, 1),
        "frames": int(model.output_length(bucket.length, of_features=scale.of_features)),
        "parameters": num_elements(state.params),
        "memory_bytes": int(used),
    }
