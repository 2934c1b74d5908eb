"""Programs of training, lowered for devices that may be absent from this machine."""

import dataclasses
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
from asr_jax.core.meshes import abstract, num_row_shards, replicated
from asr_jax.core.programs import TRACED, Program, Programs
from asr_jax.core.pytrees import Tree, flatten, unflatten
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sharding import by_device, device_bytes, is_sharded
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
        function, arguments = self._gradient_of, self.gradient_arguments(bucket)
        return self.programs.lower("gradient", function, *arguments, out_shardings=self._of_gradients)

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
        return device_bytes(self.shapes.average) + (device_bytes(trained) if self.num_batches > 1 else 0)

    def accumulated(self, gradient: Program) -> Any:
        """Returns the shapes of the output of `gradient`, with shardings.

        Args:
            gradient: Program of any bucket.
        """
        shapes: Accumulated = abstract(gradient.lowered.out_info, replicated(self.mesh))
        of_gradients = self._sharding_of_gradients
        return shapes.replace(
            grads=jax.tree.map(
                lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of), shapes.grads, of_gradients
            )
        )

    @property
    def _of_gradients(self) -> NamedSharding | None:
        """Sharding of outputs with gradients; None for those of `jax.shard_map`."""
        return replicated(self.mesh) if self.mesh.size == 1 else None

    @functools.cached_property
    def _sharding_of_gradients(self) -> Tree:
        """Shardings of the gradients of a batch, which have a first dimension of devices if rows are spread."""
        params = self.shapes.state.params
        trained, specs = flatten(self.recipe.split(params)[0]), self.recipe.sharding.specs(params, self.mesh)
        with_devices = num_row_shards(self.mesh) > 1
        return unflatten(
            {
                path: NamedSharding(self.mesh, by_device(specs[path]) if with_devices else specs[path])
                for path in trained
            }
        )

    def update(self, accumulated: Any) -> Program:
        """Lowers the update of the state.

        Args:
            accumulated: Output of `accumulated`.
        """
        state, average = self.shapes
        function: Any = functools.partial(apply_update, self.recipe, num_devices=num_row_shards(self.mesh))
        if is_sharded(self.mesh):
            function = _with_shardings(function, (*_shardings_of(self.shapes), replicated(self.mesh)))
        return self._lower("apply_update", function, state, average, accumulated, donate=(0, 1))

    def added(self, accumulated: Any) -> Program:
        """Lowers the sum of the gradients of two batches.

        Args:
            accumulated: Output of `accumulated`.
        """
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
    """Returns the function with constraints on the shardings of its outputs.

    Args:
        function: Function of trees of arrays.
        shardings: Tree of shardings of the outputs, or a prefix of it.
    """
    return lambda *arguments: jax.lax.with_sharding_constraint(function(*arguments), shardings)


def _shardings_of(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)
