"""Sharding of parameters and of the arrays that belong to them over the devices of a mesh.

Parameters with at least `MeshSizes.min_sharded` elements are spread over the axis fsdp, along their largest dimension.
Optimizer states and averages are sharded like their parameters. Optimizer states of unsharded parameters are spread
over fsdp as well (ZeRO-1), because only the update reads them. Rules of the model spread the kernels of its layers over
the axis model.

Within the gradient, a sharded parameter is a `Shard`, which Flax replaces by the whole parameter where a layer reads
it: in a scanned stack, one layer at a time, and again in the backward pass with rematerialisation. The gradient of that
all-gather is a reduce-scatter, so that gradients are sharded too.

Source: Rajbhandari et al. 2020, "ZeRO" (arXiv:1910.02054); Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277); for the
axis model, Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import struct
from flax.core import meta
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import DATA, FSDP, MODEL, ROWS, MeshSizes, replicated
from asr_jax.core.pytrees import Tree, flatten, unflatten

ModelRules = tuple[tuple[str, int], ...]
"""Pairs of a regular expression, which must match the whole path of a parameter, and the dimension, counted from the
last (-1), that is spread over the axis model."""
STACKED = "layers"
"""Module of a scanned stack. The first dimension of its parameters is the layers, which are never spread."""


class Shard(struct.PyTreeNode, meta.AxisMetadata[Array]):
    """Part of a parameter on a device, which Flax replaces by the whole parameter where a module reads it."""

    value: Array
    dimension: int = struct.field(pytree_node=False)
    """Dimension that is spread over fsdp."""

    def unbox(self) -> Array:
        return jax.lax.all_gather(self.value, FSDP, axis=self.dimension, tiled=True)

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> "Shard":
        return self.replace(dimension=self.dimension + (index <= self.dimension))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> "Shard":
        return self.replace(dimension=self.dimension - (index < self.dimension))


def sharded(params: Tree, specs: Mapping[str, PartitionSpec]) -> Tree:
    """Returns parameters with a `Shard` for each that is spread over fsdp by `Sharding.specs`."""

    def of(path: str, leaf: Array) -> Any:
        return Shard(leaf, specs[path].index(FSDP)) if FSDP in specs[path] else leaf

    return unflatten({path: of(path, leaf) for path, leaf in flatten(params).items()})


@dataclass(frozen=True)
class Sharding:
    """Rules that spread parameters and the arrays that belong to them over a mesh."""

    rules: ModelRules = ()
    """Rules of the model for the axis model."""
    min_sharded: int = MeshSizes.min_sharded
    """As `MeshSizes.min_sharded`."""

    def specs(self, params: Tree, mesh: Mesh | None) -> dict[str, PartitionSpec]:
        """Returns how each parameter is spread over the mesh, by its path.

        Raises:
            UserError: If the axis model has several devices, and no rule matches a parameter or a dimension is not
                divisible.
        """
        flat = flatten(params)
        if mesh is None or not is_sharded(mesh):
            return dict.fromkeys(flat, PartitionSpec())
        by_model = _by_model(flat, mesh, self.rules) if mesh.shape[MODEL] > 1 else {}
        found = {}
        for path, leaf in flat.items():
            axes = by_model.get(path, [None] * len(leaf.shape))
            if math.prod(leaf.shape) >= self.min_sharded:
                axes = _spread(path, leaf.shape, axes, mesh.shape[FSDP])
            found[path] = _spec(axes)
        return found

    def of(self, tree: Tree, params: Tree, mesh: Mesh, *, zero: bool) -> Tree:
        """Returns the shardings of a tree of which some arrays belong to parameters.

        An array belongs to the parameter of the same shape whose path ends its own path. Others are replicated.

        Args:
            tree: Parameters, state of an optimizer, or averaged parameters, or their shapes.
            params: Parameters, or their shapes.
            zero: Whether the arrays of parameters that are not spread over fsdp are spread nevertheless.
        """
        specs, shapes = self.specs(params, mesh), {path: leaf.shape for path, leaf in flatten(params).items()}

        def of(path: str, leaf: Any) -> NamedSharding:
            owner = next((end for end in _ends(path) if shapes.get(end) == leaf.shape), None)
            if owner is None:
                return replicated(mesh)
            axes = [*specs[owner]]
            if zero and FSDP not in axes:
                axes = _spread(owner, leaf.shape, [*axes, *[None] * (len(leaf.shape) - len(axes))], mesh.shape[FSDP])
            return NamedSharding(mesh, _spec(axes))

        found = [of(path, leaf) for path, leaf in flatten(tree).items()]
        return jax.tree.unflatten(jax.tree.structure(tree), found)


UNSPREAD = Sharding()
"""Rules of the default mesh."""


def is_sharded(mesh: Mesh) -> bool:
    """Returns whether parameters may be spread over the mesh."""
    return bool(mesh.shape[FSDP] > 1 or mesh.shape[MODEL] > 1)


def _spec(axes: Sequence[Any]) -> PartitionSpec:
    """Returns a `PartitionSpec` without trailing None entries, so that equal shardings have equal specifications."""
    while axes and axes[-1] is None:
        axes = axes[:-1]
    return PartitionSpec(*axes)


def device_bytes(shapes: Tree) -> int:
    """Returns the size in bytes of the part of a tree of arrays, or of their shapes, that each device has."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)
    )


def _ends(path: str) -> Iterator[str]:
    """Yields the path and the ends that follow each of its separators."""
    parts = path.split("/")
    yield from ("/".join(parts[number:]) for number in range(len(parts)))


def _by_model(flat: Mapping[str, Any], mesh: Mesh, rules: ModelRules) -> dict[str, list[str | None]]:
    size, found = mesh.shape[MODEL], dict[str, list[str | None]]()
    for path, leaf in flat.items():
        for pattern, dimension in rules:
            if re.fullmatch(pattern, path):
                if leaf.shape[dimension] % size:
                    raise UserError(
                        f"--mesh.model {size}: expected a divisor of {leaf.shape[dimension]}, dimension {dimension} of "
                        f"{path}"
                    )
                found[path] = [None] * len(leaf.shape)
                found[path][dimension] = MODEL
                break
    if not found:
        raise UserError(f"--mesh.model {size}: the model has no rules for the axis model; expected --mesh.model 1")
    return found


def _spread(path: str, shape: tuple[int, ...], axes: list[str | None], size: int) -> list[str | None]:
    """Returns `axes` with the largest free dimension that is divisible by `size` spread over fsdp."""
    first = int(STACKED in path.split("/"))
    free = [number for number in range(first, len(shape)) if axes[number] is None and not shape[number] % size]
    if size == 1 or not free:
        return axes
    largest = max(free, key=lambda number: shape[number])
    return [FSDP if number == largest else axis for number, axis in enumerate(axes)]


def manual(spec: PartitionSpec) -> PartitionSpec:
    """Returns a specification without the axis model, which the compiler handles."""
    return _spec([None if axis == MODEL else axis for axis in spec])


def by_device(spec: PartitionSpec) -> PartitionSpec:
    """Returns the specification of the gradients of all devices, which have a first dimension of devices.

    Args:
        spec: Specification of the parameter. If it is spread over fsdp, its gradient is summed over fsdp already.
    """
    return PartitionSpec(DATA if FSDP in spec else ROWS, *spec)
