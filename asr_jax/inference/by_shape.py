"""A function of the model and a batch that is compiled once per shape of batches, optionally in the background."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled

from asr_jax.core.batch import Batch
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import abstract_on, by_rows, replicated
from asr_jax.core.programs import Program, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.data.batching.buckets import Bucket, Scale


class ByShape:
    """Compiled `function(variables, batch, *more)` for batches whose shapes were passed to `prepare`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        variables: Tree,
        *more: Any,
        mesh: Mesh,
        programs: Programs,
        then: Callable[[Any], None] = lambda outputs: None,
    ) -> None:
        """Initialises without compiling.

        Args:
            variables: Variables of the model, or their shapes.
            *more: Further arguments of the function, or their shapes.
            then: Called with the shapes of each program's outputs before the program is compiled.
        """
        self._name, self._function, self._mesh, self._programs, self._then = name, function, mesh, programs, then
        self._variables, self._more = abstract_on((variables, more), mesh)
        self._pool = ThreadPoolExecutor(1)
        self.compiled: dict[tuple[tuple[int, ...], ...], Future[Compiled]] = {}
        """Compiled programs by the shapes of signals and labels."""

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Starts to compile for the shapes of (abstract) batches, in a thread."""
        for batch in batches:
            if _shapes(batch) not in self.compiled:
                self.compiled[_shapes(batch)] = self._pool.submit(self._compile, self.lower(batch))

    def lower(self, batch: Batch) -> Program:
        """Lowers the function for the shapes of a batch."""
        return self._programs.lower(
            self._name, self._function, self._variables, batch, *self._more, out_shardings=replicated(self._mesh)
        )

    def _compile(self, program: Program) -> Compiled:
        self._then(program.lowered.out_info)
        return program.compile()

    def wait(self) -> None:
        """Waits until all prepared shapes are compiled."""
        for compiled in self.compiled.values():
            compiled.result()

    def __call__(self, variables: Tree, batch: Batch, *more: Any) -> Any:
        """Calls the program for a global batch. The result is on the device, and may still be being computed."""
        return self.compiled[_shapes(batch)].result()(variables, batch, *more)


def _shapes(batch: Batch) -> tuple[tuple[int, ...], ...]:
    return batch.signal.shape, batch.tokens.shape


def abstract_batch(bucket: Bucket, mesh: Mesh, scale: Scale) -> Batch:
    """Returns the shapes of a bucket's global batch of audio or features, with padding rows for the devices."""
    rows, num_rows = by_rows(mesh), Layout.of(mesh).num_rows(bucket.batch_size)

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_rows, *shape), dtype, sharding=rows)

    return Batch(
        audio=None if scale.of_features else array((bucket.length,), np.int16),
        features=array((bucket.length, scale.num_values), np.float32) if scale.of_features else None,
        lengths=array((), np.int32),
        tokens=array((bucket.num_tokens,), np.int32),
        token_lengths=array((), np.int32),
        weights=array((), np.float32),
        utterances=array((), np.int32),
    )
