"""Compilation of the training programs for all batch shapes before the first update.

Later updates therefore do not compile, and a batch that does not fit into memory is found at the start.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import replicated
from asr_jax.core.programs import TRACED, Program, Programs, memory_of
from asr_jax.core.pytrees import num_elements
from asr_jax.data.batching.buckets import Bucket, Scale, largest_first
from asr_jax.models.base import Recogniser
from asr_jax.training.beginning import Beginning
from asr_jax.training.lowering import StepPrograms
from asr_jax.training.state import TrainState
from asr_jax.training.step import Accumulated, Denominators, Recipe

Compiled = Callable[..., Any]
Part = tuple[Bucket, Batch, np.int32]
"""Batch of an update on all devices, with its bucket and its position in the plan."""

SMALLER_BATCHES = (
    "compute each batch in parts (--training.split 2), lower --data.buckets.batch-seconds (or the rows or seconds of "
    "--data.sampling), or lower "
    "--data.filters.max-duration-s if one long recording fills the batch"
)


@dataclass(frozen=True)
class CompiledSteps:
    """Executables of training. A call with another shape or sharding raises an error instead of compiling."""

    gradient: dict[Bucket, Compiled]
    apply_update: Compiled
    loss_terms: tuple[str, ...]
    """Names of the sums that are loss terms; the others are metrics."""
    of_several: "OfSeveral | None"
    """Programs for updates of several batches; None if all updates have one batch."""
    table: list[dict[str, Any]]
    """A row per bucket: shape, rows, parameters, memory according to XLA's analysis in bytes, and floating-point
    operations of products, both on one device."""
    memory: dict[str, int | None]
    """Memory of a device in bytes: `maximum_bytes`, needed by the largest bucket with the averaged parameters, and
    `limit_bytes`, which is None if the device reports no limit."""

    def accumulate(self, state: TrainState, parts: Sequence[Part]) -> Accumulated:
        """Computes the gradient of an update.

        Args:
            state: State before the update.
            parts: Batches of the update.
        """
        bucket, batch, position = parts[0]
        if self.of_several is None:
            only: Accumulated = self.gradient[bucket](state, state.carried, batch, None, position)
            return only
        denominators = self.of_several.denominators_of(state, parts)
        found: Accumulated = self.gradient[bucket](state, state.carried, batch, denominators, position)
        for bucket, batch, position in parts[1:]:
            more = self.gradient[bucket](state, found.carried, batch, denominators, position)
            found = self.of_several.add(found, more)
        return found


@dataclass(frozen=True)
class OfSeveral:
    """Executables for updates of several batches."""

    denominators: dict[Bucket, Compiled]
    add_denominators: Compiled
    """Program that adds the denominators of each loss term over a list of batches."""
    num_batches: int
    """Length of that list."""
    none: Denominators
    """Zeros, for the missing batches of an update with fewer batches."""
    add: Compiled
    """Program that adds the gradients of batches."""

    def denominators_of(self, state: TrainState, parts: Sequence[Part]) -> Denominators:
        """Computes the denominator of each loss term over the batches of an update."""
        each = [self.denominators[bucket](batch, state.key, state.updates) for bucket, batch, _ in parts]
        added: Denominators = self.add_denominators(each + [self.none] * (self.num_batches - len(each)))
        return added


class Compiling(NamedTuple):
    """A program that is being compiled."""

    future: Future[Any]
    outputs: Any
    """Shapes of the outputs."""
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
        num_batches: Number of batches of an update.
        sounds: Recordings that augmentations add. They are copied to every device.
        programs: Cache of traced programs.
        tell: Called in this thread with each bucket that is compiled.

    Raises:
        UserError: If a batch does not fit into the memory of a device.
    """
    same = replicated(mesh)
    on_device = jax.device_put(dict(sounds), same)
    step = StepPrograms(recipe, shapes, mesh, scale, num_batches, sounds, programs)
    ordered = [buckets[i] for i in largest_first(buckets)]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 4)) as pool:

        def compiling(program: Program) -> Compiling:
            # Traced in this thread: threads that trace at the same time only wait for each other.
            future = pool.submit(program.compile)
            return Compiling(future, program.lowered.out_info, program.flops)

        gradients = {bucket: step.gradient(bucket) for bucket in ordered}
        jobs = {bucket: compiling(program) for bucket, program in gradients.items()}
        accumulated = step.accumulated(gradients[ordered[0]])
        updating = compiling(step.update(accumulated))
        denominators = step.denominator_shapes(ordered[0])
        several: tuple[dict[Bucket, Compiling], Compiling, Compiling] | None = None
        if num_batches > 1:
            of_batches = {bucket: compiling(step.denominators(bucket)) for bucket in ordered}
            adding = compiling(step.added_denominators(denominators))
            several = of_batches, adding, compiling(step.added(accumulated))
        compiled = _results(jobs, pool, tell)
        table = [
            _row(bucket, compiled[bucket], shapes.state, step.recipe.model, scale)
            | {"flops": jobs[bucket].flops / mesh.size}
            for bucket in ordered
        ]
        memory = _checked_memory(table, step.kept_bytes, mesh)
        return CompiledSteps(
            gradient={bucket: _with_sounds(program, on_device) for bucket, program in compiled.items()},
            apply_update=updating.future.result(),
            loss_terms=tuple(denominators),
            of_several=several
            and OfSeveral(
                denominators={bucket: job.future.result() for bucket, job in several[0].items()},
                add_denominators=several[1].future.result(),
                num_batches=num_batches,
                none=jax.device_put({name: np.zeros((), np.float32) for name in denominators}, same),
                add=several[2].future.result(),
            ),
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


def _checked_memory(table: Sequence[Mapping[str, Any]], more_bytes: int, mesh: Mesh) -> dict[str, int | None]:
    """Returns `CompiledSteps.memory`.

    Args:
        table: As `CompiledSteps.table`.
        more_bytes: Memory that is in use in addition to the program's.

    Raises:
        UserError: If the largest bucket and `more_bytes` need more memory than a device has.
    """
    limit = (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")  # CPUs report no limit.
    worst = max(table, key=lambda row: row["memory_bytes"])
    needed = worst["memory_bytes"] + more_bytes
    if limit and needed > limit:
        raise UserError(
            f"the batch of {worst['rows']} × {worst['seconds']} s needs {needed / 1e9:.1f} GB with the training "
            f"state, and a device has {limit / 1e9:.1f} GB; {SMALLER_BATCHES}"
        )
    return {"maximum_bytes": needed, "limit_bytes": limit}


def _row(bucket: Bucket, compiled: Any, state: TrainState, model: Recogniser, scale: Scale) -> dict[str, Any]:
    seconds = bucket.length / scale.per_s
    return {
        "seconds": round(seconds, 2),
        "rows": bucket.batch_size,
        "labels": bucket.num_tokens,
        "audio_s": round(seconds * bucket.batch_size, 1),
        "frames": int(model.output_length(bucket.length, of_features=scale.of_features)),
        "parameters": num_elements(state.params),
        "memory_bytes": memory_of(compiled),
    }
