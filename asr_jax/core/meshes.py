"""The mesh of all devices with one axis, `data`, and how arrays lie on it: batches by rows, state replicated."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def data_mesh(num_devices: int | None = None) -> Mesh:
    """All devices of all processes (or the first `num_devices`) along one axis named `data`."""
    # Not jax.make_mesh, which may order devices for their links: each process loads its contiguous rows of a batch.
    return Mesh(np.array(jax.devices()[:num_devices]), ("data",), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copies arrays of one device to every device of the mesh.

    Each process passes the same values.

    Raises: AssertionError if the values of several processes differ.
    """
    if jax.process_count() > 1:
        # The outputs of an exported program are committed to one device, from which JAX does not copy to the devices of
        # other processes. It compares host arrays between the processes before it copies them.
        tree = jax.device_get(tree)
    return jax.device_put(tree, replicated(mesh))


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec("data"))


def global_batch(batch: Any, mesh: Mesh) -> Any:
    """Global arrays, split over rows, from this process's rows of a batch."""
    sharding = by_rows(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, np.asarray(rows)), batch)


def abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Shapes and types of a tree (of arrays or of shapes), lying so: what to compile for, or to restore into."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)
