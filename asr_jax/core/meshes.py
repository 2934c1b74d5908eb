"""The mesh of all devices with the axes `data`, `fsdp` and `model`, and the sharding of arrays over it.

Rows of a batch are spread over `data` and `fsdp`. Large parameters and what belongs to them are spread over `fsdp`
(see `core.sharding`), and the products of layers over `model`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from asr_jax.core.devices import devices, local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.settings import PositiveInt, settings

AXES = DATA, FSDP, MODEL = ("data", "fsdp", "model")
ROWS = (DATA, FSDP)
"""Axes of the mesh that the rows of a batch are spread over."""


@settings
class MeshSizes:
    """Number of devices along each axis of the mesh. The product is the number of devices of the job."""

    data: int = -1
    """Number of groups of devices that have all parameters. -1: as many as there are devices for."""
    fsdp: PositiveInt = 1
    """Number of devices that large parameters, their gradients, optimizer states and averages are spread over (fully
    sharded data parallelism). Each device computes its own rows, and fetches the parameters of a layer for as long as
    it computes the layer."""
    model: PositiveInt = 1
    """Number of devices that the products of a layer are spread over (tensor parallelism). They compute the same rows.
    It must divide the number of devices of a process."""
    min_sharded: PositiveInt = 1 << 16
    """Smallest number of elements of a parameter that is spread over the fsdp axis. The optimizer states
    of smaller parameters are spread nevertheless (ZeRO-1)."""

    def problems(self) -> Iterator[str]:
        if self.data < 1 and self.data != -1:
            yield f"data is {self.data}: expected at least 1, or -1 for all devices"

    def mesh(self, chosen: Sequence[jax.Device] | None = None) -> Mesh:
        """Returns the mesh of devices.

        Args:
            chosen: Devices in the order of the processes. None: the devices of all processes.

        Raises:
            UserError: If the product of the sizes is not the number of devices, or if the devices along the axis model
                are of several processes.
        """
        all_devices = list(devices() if chosen is None else chosen)
        data = len(all_devices) // (self.fsdp * self.model) if self.data == -1 else self.data
        if data * self.fsdp * self.model != len(all_devices) or not data:
            raise UserError(
                f"--mesh.data {self.data} --mesh.fsdp {self.fsdp} --mesh.model {self.model}: expected a product of "
                f"{len(all_devices)}, the number of devices of the job; with --mesh.data -1, a product of fsdp and "
                "model that divides it"
            )
        owned = [device for device in all_devices if device.process_index == all_devices[0].process_index]
        if len(owned) % self.model:
            raise UserError(
                f"--mesh.model {self.model}: expected a divisor of {len(owned)}, the number of devices of a process"
            )
        return mesh_of(all_devices, fsdp=self.fsdp, model=self.model)


def mesh_of(chosen: Any, *, fsdp: int = 1, model: int = 1) -> Mesh:
    """Returns a mesh of devices."""
    # jax.make_mesh may reorder devices, but each process loads contiguous rows of a batch.
    return Mesh(np.array(chosen).reshape(-1, fsdp, model), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def data_mesh(num_devices: int | None = None) -> Mesh:
    """Returns a mesh of the devices of all processes, or of the first `num_devices`, along the axis data."""
    return mesh_of(devices()[:num_devices])


def own_mesh() -> Mesh:
    """Returns a mesh of the devices of this process along the axis data."""
    return mesh_of(local_devices())


def described_devices(mesh: Mesh) -> str:
    """Returns the number and kind of the devices of a mesh, such as `8 × NVIDIA H100 80GB HBM3`."""
    return f"{mesh.size} × {mesh.devices.flat[0].device_kind}"


def num_row_devices(mesh: Mesh) -> int:
    """Returns the number of parts that the rows of a batch are divided into."""
    return int(mesh.shape[DATA] * mesh.shape[FSDP])


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def placed(tree: Any, shardings: Any) -> Any:
    """Copies arrays of one device to the devices of their shardings.

    Each process passes the same values.

    Raises:
        AssertionError: If the values of the processes differ.
    """
    if jax.process_count() > 1:
        # The outputs of an exported program are committed to one device, from which JAX does not copy to the devices of
        # other processes. It compares host arrays between the processes before it copies them.
        tree = jax.device_get(tree)
    return jax.device_put(tree, shardings)


def of_this_process(tree: Any, mesh: Mesh) -> Any:
    """Returns replicated arrays on a mesh of this process's devices alone. With one process, they are unchanged."""
    if jax.process_count() == 1:
        return tree
    return jax.device_put(jax.tree.map(lambda leaf: leaf.addressable_data(0), tree), replicated(mesh))


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(ROWS))


def global_batch(batch: Any, mesh: Mesh) -> Any:
    """Returns global arrays, sharded by rows, from this process's rows of a batch."""
    sharding = by_rows(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, np.asarray(rows)), batch)


def abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Returns the tree's shapes and dtypes with a sharding, as jit compiles for and Orbax restores into."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def abstract_on(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree's shapes and dtypes with their shardings. Arrays without one on the mesh are replicated."""

    def of(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        is_there = isinstance(sharding, NamedSharding) and sharding.mesh == mesh
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding if is_there else replicated(mesh))

    return jax.tree.map(of, tree)
