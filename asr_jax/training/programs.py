"""Programs of training: lowered for the shapes of all batches, compiled before the first update, and watched after it.

A batch that does not fit into memory is therefore found at the start. Devices of lowered programs may be absent.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int, UInt32

from asr_jax.core.allocator import available_bytes
from asr_jax.core.batch import Batch
from asr_jax.core.devices import platform_of
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, num_row_devices, replicated
from asr_jax.core.programs import TRACED, Program, Programs, memory_of
from asr_jax.core.pytrees import Tree, flatten, num_elements, unflatten
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sharding import by_device, device_bytes, is_sharded
from asr_jax.data.batching.buckets import Bucket, Scale, largest_first
from asr_jax.inference.by_shape import abstract_batch
from asr_jax.models.base import Recogniser
from asr_jax.models.terms import batch_denominators
from asr_jax.training.initial_state import InitialState
from asr_jax.training.recipe import Recipe
from asr_jax.training.state import TrainState
from asr_jax.training.step import (
    Accumulated,
    Denominators,
    accumulated,
    add,
    added_denominators,
    apply_update,
    gradient_of,
)


@dataclass(frozen=True)
class StepPrograms:
    """Functions of a training step and the shapes of their arguments, on the devices of a mesh."""

    recipe: Recipe
    shapes: InitialState
    """Output of `abstract_state`."""
    mesh: Mesh
    scale: Scale
    """Unit of the buckets' lengths."""
    num_batches: int = 1
    """Number of batches of an update."""
    sounds: Mapping[str, np.ndarray] = field(default_factory=lambda: MappingProxyType({}))
    """Recordings that augmentations add."""
    programs: Programs = TRACED
    """Cache of traced programs."""

    def gradient(self, bucket: Bucket) -> Program:
        """Lowers the gradient of a batch."""
        function, arguments = self._gradient_of, self.gradient_arguments(bucket)
        return self.programs.lower("gradient", function, *arguments, out_shardings=self._of_gradients)

    def gradient_arguments(self, bucket: Bucket) -> tuple[Any, ...]:
        """Shapes of the arguments of `gradient`."""
        same, state = replicated(self.mesh), self.shapes.state
        sounds = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in self.sounds.items()}
        return (
            state,
            state.carried,
            abstract_batch(bucket, self.mesh, self.scale),
            self.denominator_shapes(bucket) if self.num_batches > 1 else None,
            jax.ShapeDtypeStruct((), jnp.int32, sharding=same),
            abstract(sounds, same),
        )

    def gradient_memory(self, bucket: Bucket) -> int:
        """Compiles the gradient of a batch if necessary.

        Returns:
            The memory of a device in bytes during it, with the averaged parameters and the sum of the gradients of
            earlier batches.
        """
        used = self.programs.memory(
            "gradient", self._gradient_of, *self.gradient_arguments(bucket), out_shardings=self._of_gradients
        )
        return used + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """Memory of a device in bytes that is in use during a gradient in addition to the program's.

        It has the averaged parameters and, between the batches of an update, the sum of their gradients.
        """
        trained, _ = self.recipe.split(self.shapes.state.params)
        return device_bytes(self.shapes.average) + (device_bytes(trained) if self.num_batches > 1 else 0)

    def accumulated(self, gradient: Program) -> Any:
        """Returns the shapes of the output of `gradient`, with shardings."""
        shapes: Accumulated = abstract(gradient.lowered.out_info, replicated(self.mesh))
        of_gradients = self._sharding_of_gradients
        return shapes.replace(
            grads=jax.tree.map(
                lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of), shapes.grads, of_gradients
            )
        )

    @property
    def _of_gradients(self) -> NamedSharding | None:
        """Sharding of the gradient on one device. None: `jax.shard_map` determines it."""
        return replicated(self.mesh) if self.mesh.size == 1 else None

    @functools.cached_property
    def _sharding_of_gradients(self) -> Tree:
        """Shardings of the gradients of a batch, which have a first dimension of devices if rows are spread."""
        params = self.shapes.state.params
        trained, specs = flatten(self.recipe.split(params)[0]), self.recipe.sharding.specs(params, self.mesh)
        with_devices = num_row_devices(self.mesh) > 1
        return unflatten(
            {
                path: NamedSharding(self.mesh, by_device(specs[path]) if with_devices else specs[path])
                for path in trained
            }
        )

    def update(self, accumulated: Any) -> Program:
        """Lowers the update of the state."""
        state, average = self.shapes
        function: Any = functools.partial(apply_update, self.recipe, num_devices=num_row_devices(self.mesh))
        if is_sharded(self.mesh):
            function = _with_shardings(function, (*_shardings_of(self.shapes), replicated(self.mesh)))
        return self._lower("apply_update", function, state, average, accumulated, donate=(0, 1))

    def added(self, accumulated: Any) -> Program:
        """Lowers the sum of the gradients of two batches."""
        function = _with_shardings(add, _shardings_of(accumulated)) if is_sharded(self.mesh) else add
        return self.programs.lower(
            "add", function, accumulated, accumulated, donate_argnums=(0,), out_shardings=self._of_gradients
        )

    def denominators(self, bucket: Bucket) -> Program:
        """Lowers the denominators of the loss terms of a batch."""
        batch = abstract_batch(bucket, self.mesh, self.scale)
        state = self.shapes.state
        return self._lower("batch_denominators", self._denominators_of, batch, state.key, state.updates)

    def added_denominators(self, denominators: Any) -> Program:
        """Lowers the sum of the denominators of the batches of an update."""
        return self._lower("add_denominators", added_denominators, [denominators] * self.num_batches)

    def denominator_shapes(self, bucket: Bucket) -> Any:
        """Shapes of the output of `denominators`."""
        batch, state = abstract_batch(bucket, self.mesh, self.scale), self.shapes.state
        return abstract(jax.eval_shape(self._denominators_of, batch, state.key, state.updates), replicated(self.mesh))

    @functools.cached_property
    def _gradient_of(self) -> Callable[..., Any]:
        function = functools.partial(gradient_of, self.recipe, mesh=self.mesh)
        if not is_sharded(self.mesh):
            return function
        others: list[Any] = [replicated(self.mesh)] * (len(dataclasses.fields(Accumulated)) - 1)
        return _with_shardings(function, Accumulated(self._sharding_of_gradients, *others))

    def _denominators_of(self, batch: Batch, key: UInt32[Array, "2"], updates: Int[Array, ""]) -> Denominators:
        return batch_denominators(self.recipe.model, batch, random_streams(key, updates))

    def _lower(self, name: str, function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Program:
        same = None if is_sharded(self.mesh) else replicated(self.mesh)
        return self.programs.lower(name, function, *arguments, donate_argnums=donate, out_shardings=same)


def _with_shardings(function: Callable[..., Any], shardings: Any) -> Callable[..., Any]:
    """Returns the function with constraints on the shardings of its outputs."""
    return lambda *arguments: jax.lax.with_sharding_constraint(function(*arguments), shardings)


def _shardings_of(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)


Compiled = Callable[..., Any]
Part = tuple[Bucket, Batch, np.int32]
"""Batch of an update on all devices, with its bucket and its position in the plan."""

SMALLER_BATCHES = (
    "compute each batch in parts (--training.split 2), lower --data.batching.budget (or rows), or lower "
    "--data.filters.max-duration-s if one long recording fills the batch"
)


@dataclass(frozen=True)
class CompiledSteps:
    """Executables of training. A call with another shape or sharding raises an error instead of compiling."""

    gradient: dict[Bucket, Compiled]
    executables: dict[Bucket, Compiled]
    """Compiled programs that the functions in `gradient` call with the recordings that augmentations add."""
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
        """Computes the gradient of an update."""
        several = self.of_several
        denominators = several.denominators_of(state, parts) if several else None
        return accumulated(state, parts, denominators, gradients=self.gradient, add=several.add if several else add)


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


def compile_steps(
    recipe: Recipe,
    buckets: Sequence[Bucket],
    shapes: InitialState,
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
        shapes: Output of `abstract_state`.
        sounds: Recordings that augmentations add. They are copied to every device.
        tell: Called in this thread with each bucket that is compiled.

    Raises:
        UserError: If a batch does not fit into the memory of a device.
    """
    same = replicated(mesh)
    on_device = jax.device_put(dict(sounds), same)
    step = StepPrograms(recipe, shapes, mesh, scale, num_batches, sounds, programs)
    ordered = [buckets[i] for i in largest_first(buckets)]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 4)) as pool:

        def compiling(program: Program) -> Future[Compiled]:
            return pool.submit(program.compile)

        # Traced in this thread: threads that trace at the same time only wait for each other.
        gradients = {bucket: step.gradient(bucket) for bucket in ordered}
        jobs = {bucket: compiling(program) for bucket, program in gradients.items()}
        accumulated = step.accumulated(gradients[ordered[0]])
        updating = compiling(step.update(accumulated))
        denominators = step.denominator_shapes(ordered[0])
        if num_batches > 1:
            of_batches = {bucket: compiling(step.denominators(bucket)) for bucket in ordered}
            adding_denominators = compiling(step.added_denominators(denominators))
            adding = compiling(step.added(accumulated))
        compiled = _results(jobs, pool, tell)
        table = [
            _row(bucket, compiled[bucket], shapes.state, step.recipe.model, scale)
            | {"flops": gradients[bucket].flops / mesh.size}
            for bucket in ordered
        ]
        memory = _checked_memory(table, step.kept_bytes, mesh)
        return CompiledSteps(
            gradient={bucket: _with_sounds(program, on_device) for bucket, program in compiled.items()},
            executables=compiled,
            apply_update=updating.result(),
            loss_terms=tuple(denominators),
            of_several=OfSeveral(
                denominators={bucket: job.result() for bucket, job in of_batches.items()},
                add_denominators=adding_denominators.result(),
                num_batches=num_batches,
                none=jax.device_put({name: np.zeros((), np.float32) for name in denominators}, same),
                add=adding.result(),
            )
            if num_batches > 1
            else None,
            table=table,
            memory=memory,
        )


def _with_sounds(program: Compiled, sounds: Mapping[str, jax.Array]) -> Compiled:
    return lambda *arguments: program(*arguments, sounds)


def _results(
    jobs: Mapping[Bucket, Future[Compiled]], pool: ThreadPoolExecutor, tell: Callable[[Bucket], None]
) -> dict[Bucket, Compiled]:
    """Waits for the executables of all buckets."""
    compiled = {}
    for bucket, job in jobs.items():
        try:
            compiled[bucket] = job.result()
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
    """Returns `CompiledSteps.memory`."""
    device = mesh.local_devices[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")  # CPUs report no limit, and share the machine's memory.
    has = limit or (available_bytes() // len(mesh.local_devices) if platform_of(device) == "cpu" else 0)
    worst = max(table, key=lambda row: row["memory_bytes"])
    needed = worst["memory_bytes"] + more_bytes
    if has and needed > has:
        raise UserError(
            f"the batch of {worst['rows']} × {worst['seconds']} s needs {needed / 1e9:.3g} GB with the training "
            f"state, and a device has {has / 1e9:.3g} GB; {SMALLER_BATCHES}"
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


COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def watch_compilations(tell: Callable[..., None]) -> Iterator[None]:
    """Calls `tell(function=…, seconds=…, reason=…)` for each program that is compiled in the context."""
    reasons, logger, explained = _Reasons(), logging.getLogger("jax"), jax.config.jax_explain_cache_misses

    def on_event(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            function = str(kwargs.get("fun_name", "a function"))
            tell(function=function, seconds=round(duration_secs, 2), reason=reasons.last())

    jax.config.update("jax_explain_cache_misses", True)
    logger.addHandler(reasons)
    jax.monitoring.register_event_duration_secs_listener(on_event)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(on_event)
        logger.removeHandler(reasons)
        jax.config.update("jax_explain_cache_misses", explained)


class _Reasons(logging.Handler):
    """Log handler that keeps JAX's last explanation of a cache miss."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "TRACING CACHE MISS" in message:
            self._last = " ".join(message.split())

    def last(self) -> str:
        reason, self._last = self._last, ""
        return reason or "first call of the function"
