"""A function of the model and a batch, compiled once for each shape of batches, in the background if asked to."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import abstract, by_rows, replicated
from asr_jax.core.programs import Programs
from asr_jax.core.pytrees import Tree
from asr_jax.data.batching.buckets import Bucket, Scale


class ByShape:
    """`programs(variables, batch, *more)` of batches whose shapes were given to `prepare`."""

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
        """Args:
            name: as in `core.programs.Programs.lower`.
            variables, more: what it will be called with, or its shapes.
            programs: which lowers it.
            then: called with the shapes of the outputs of each program, before that is compiled.
        """
        self._name, self._function, self._mesh, self._programs, self._then = name, function, mesh, programs, then
        self._variables, self._more = abstract((variables, more), replicated(mesh))
        self._pool = ThreadPoolExecutor(1)
        self.compiled: dict[tuple[tuple[int, ...], ...], Future[Compiled]] = {}
        """By the shapes of signals and labels."""

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Begins to compile for (abstract) batches."""
        for batch in batches:
            if _shapes(batch) not in self.compiled:
                program = self._programs.lower(
                    self._name, self._function, self._variables, batch, *self._more,
                    out_shardings=replicated(self._mesh),
                )  # fmt: skip
                self.compiled[_shapes(batch)] = self._pool.submit(self._compile, program.lowered)

    def _compile(self, program: Lowered) -> Compiled:
        self._then(program.out_info)
        return program.compile()

    def wait(self) -> None:
        """Returns when all shapes that were prepared are compiled."""
        for compiled in self.compiled.values():
            compiled.result()

    def __call__(self, variables: Tree, batch: Batch, *more: Any) -> Any:
        """Of a global batch; on the device, and perhaps not yet there."""
        return self.compiled[_shapes(batch)].result()(variables, batch, *more)


def _shapes(batch: Batch) -> tuple[tuple[int, ...], ...]:
    return batch.signal.shape, batch.tokens.shape


def abstract_batch(bucket: Bucket, mesh: Mesh, scale: Scale) -> Batch:
    """The shapes of a bucket's global batch of audio, or of ready features."""
    rows = by_rows(mesh)

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((bucket.batch_size, *shape), dtype, sharding=rows)

    return Batch(
        audio=None if scale.of_features else array((bucket.length,), np.int16),
        features=array((bucket.length, scale.num_values), np.float32) if scale.of_features else None,
        lengths=array((), np.int32),
        tokens=array((bucket.num_tokens,), np.int32),
        token_lengths=array((), np.int32),
        weights=array((), np.float32),
        utterances=array((), np.int32),
    )
