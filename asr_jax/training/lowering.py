"""Programs of training, lowered for devices that may be absent from this machine."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int, UInt32

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import abstract, by_rows, replicated
from asr_jax.core.programs import TRACED, Program, Programs
from asr_jax.core.pytrees import num_bytes
from asr_jax.core.random_streams import random_streams
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.inference.by_shape import abstract_batch
from asr_jax.models.terms import batch_denominators
from asr_jax.training.beginning import Beginning
from asr_jax.training.step import Accumulated, Denominators, Recipe, add, added_denominators, apply_update, gradient_of


@dataclass(frozen=True)
class StepPrograms:
    """Functions of a training step and the shapes of their arguments, on the devices of a mesh."""

    recipe: Recipe
    shapes: Beginning
    """Output of `abstract_beginning`."""
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
        return self.programs.lower(
            "gradient", self._gradient_of, *self.gradient_arguments(bucket), out_shardings=self._of_gradients
        )

    def gradient_arguments(self, bucket: Bucket) -> tuple[Any, ...]:
        """Shapes of the arguments of `gradient`."""
        same, state = replicated(self.mesh), self.shapes.state
        sounds = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in self.sounds.items()}
        return (
            state, state.carried, abstract_batch(bucket, self.mesh, self.scale),
            self.denominator_shapes(bucket) if self.num_batches > 1 else None,
            jax.ShapeDtypeStruct((), jnp.int32, sharding=same), abstract(sounds, same),
        )  # fmt: skip

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
        return num_bytes(self.shapes.average) + (num_bytes(trained) if self.num_batches > 1 else 0)

    def accumulated(self, gradient: Program) -> Any:
        """Returns the shapes of the output of `gradient`, with shardings.

        Args:
            gradient: Program of any bucket.
        """
        shapes: Accumulated = abstract(gradient.lowered.out_info, replicated(self.mesh))
        return shapes.replace(grads=abstract(shapes.grads, by_rows(self.mesh))) if self.mesh.size > 1 else shapes

    @property
    def _of_gradients(self) -> NamedSharding | None:
        """Sharding of outputs with gradients; None for those of `jax.shard_map`."""
        return replicated(self.mesh) if self.mesh.size == 1 else None

    def update(self, accumulated: Any) -> Program:
        """Lowers the update of the state.

        Args:
            accumulated: Output of `accumulated`.
        """
        state, average = self.shapes
        function = functools.partial(apply_update, self.recipe, num_devices=self.mesh.size)
        return self._lower("apply_update", function, state, average, accumulated, donate=(0, 1))

    def added(self, accumulated: Any) -> Program:
        """Lowers the sum of the gradients of two batches.

        Args:
            accumulated: Output of `accumulated`.
        """
        return self.programs.lower(
            "add", add, accumulated, accumulated, donate_argnums=(0,), out_shardings=self._of_gradients
        )

    def denominators(self, bucket: Bucket) -> Program:
        """Lowers the denominators of the loss terms of a batch."""
        batch = abstract_batch(bucket, self.mesh, self.scale)
        state = self.shapes.state
        return self._lower("batch_denominators", self._denominators_of, batch, state.key, state.updates)

    def added_denominators(self, denominators: Any) -> Program:
        """Lowers the sum of the denominators of the batches of an update.

        Args:
            denominators: Shapes of the output of `denominators`.
        """
        return self._lower("add_denominators", added_denominators, [denominators] * self.num_batches)

    def denominator_shapes(self, bucket: Bucket) -> Any:
        """Shapes of the output of `denominators`."""
        batch, state = abstract_batch(bucket, self.mesh, self.scale), self.shapes.state
        return abstract(jax.eval_shape(self._denominators_of, batch, state.key, state.updates), replicated(self.mesh))

    @functools.cached_property
    def _gradient_of(self) -> Callable[..., Any]:
        return functools.partial(gradient_of, self.recipe, mesh=self.mesh)

    def _denominators_of(self, batch: Batch, key: UInt32[Array, "2"], updates: Int[Array, ""]) -> Denominators:
        return batch_denominators(self.recipe.model, batch, random_streams(key, updates))

    def _lower(self, name: str, function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Program:
        return self.programs.lower(
            name, function, *arguments, donate_argnums=donate, out_shardings=replicated(self.mesh)
        )
