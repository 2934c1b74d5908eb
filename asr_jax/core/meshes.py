"""The mesh of all devices with one axis, `data`: batches are sharded by rows, state is replicated."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from asr_jax.core.devices import devices, local_devices


def data_mesh(num_devices: int | None = None) -> Mesh:
    """Returns a mesh of the devices of all processes, or of the first `num_devices`, with one axis named `data`."""
    # jax.make_mesh may reorder devices, but each process loads contiguous rows of a batch.
    return Mesh(np.array(devices()[:num_devices]), ("data",), axis_types=(AxisType.Auto,))


def own_mesh() -> Mesh:
    """Returns a mesh of the devices of this process, with one axis named `data`."""
    return Mesh(np.array(local_devices()), ("data",), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copies arrays of one device to every device of the mesh.

    Each process passes the same values.

    Raises:
        AssertionError: If the values of the processes differ.
    """
    if jax.process_count() > 1:
        # The outputs of an exported program are committed to one device, from which JAX does not copy to the devices of
        # other processes. It compares host arrays between the processes before it copies them.
        tree = jax.device_get(tree)
    return jax.device_put(tree, replicated(mesh))


def of_this_process(tree: Any, mesh: Mesh) -> Any:
    """Returns replicated arrays on a mesh of this process's devices alone. With one process, they are unchanged."""
    if jax.process_count() == 1:
        return tree
    return jax.device_put(jax.tree.map(lambda leaf: leaf.addressable_data(0), tree), replicated(mesh))


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec("data"))


def global_batch(batch: Any, mesh: Mesh) -> Any:
    """Returns global arrays, sharded by rows, from this process's rows of a batch."""
    sharding = by_rows(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, np.asarray(rows)), batch)


def abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Returns the tree's shapes and dtypes with a sharding, as jit compiles for and Orbax restores into."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)
