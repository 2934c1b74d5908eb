"""Reductions over the rows of all devices, for functions that each device computes for its own rows.

Gradients and losses are computed `on_each_device`, with some rows and all parameters, so that the compiler inserts no
collectives. Whatever needs the rows of other devices, such as the statistics of batch norm, calls a function of this
module. Elsewhere, all rows of the batch are local, and these functions return their arguments.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped

from asr_jax.core.devices import traced_for, tracing_for
from asr_jax.core.meshes import ROWS, num_row_devices

SAME, BY_ROWS = PartitionSpec(), PartitionSpec(ROWS)

_devices: ContextVar[int] = ContextVar("devices", default=1)


def on_each_device(
    function: Callable[[Any, Any], Any], mesh: Mesh, outputs: Any, *, inputs: Any = SAME
) -> Callable[[Any, Any], Any]:
    """Returns a function that each device computes for its rows; if rows are not spread, the function itself.

    Args:
        function: Function of a tree of arrays that are the same on all devices, and of a tree of arrays of rows.
        outputs: Tree of specifications of the outputs, or a prefix of it: `SAME` or `BY_ROWS`.
        inputs: Tree of specifications of the first argument, or a prefix of it. Arrays that are spread over fsdp are
            not the same on all devices.
    """
    devices = num_row_devices(mesh)
    if devices == 1:
        return function

    def local(same: Any, rows: Any) -> Any:
        token = _devices.set(devices)
        try:
            with tracing_for(list(mesh.devices.flat[:1]), traced_for().kernels):
                return function(same, rows)
        finally:
            _devices.reset(token)

    # Types that vary over devices would make JAX sum the gradient of each layer over the devices, within the loop.
    return jax.shard_map(
        local, mesh=mesh, in_specs=(inputs, BY_ROWS), out_specs=outputs, axis_names=set(ROWS), check_vma=False
    )


def total[T](values: T) -> T:
    """Sums arrays, such as sums over the local rows, over the devices."""
    if _devices.get() == 1 or not jax.tree.leaves(values):
        return values
    summed: T = jax.lax.psum(values, ROWS)
    return summed


def mean(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Averages an array, such as a mean over the local rows, over the devices."""
    return values if _devices.get() == 1 else jax.lax.pmean(values, ROWS)


def least(values: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Computes the minimum of an array over the devices."""
    return values if _devices.get() == 1 else jax.lax.pmin(values, ROWS)


def all_rows(values: Shaped[Array, "B *rest"]) -> Shaped[Array, "N *rest"]:
    """Returns the rows of all devices."""
    return values if _devices.get() == 1 else jax.lax.all_gather(values, ROWS, tiled=True)


def first_row(num_rows: int) -> Int[Array, ""]:
    """Returns the number of the first local row in the whole batch."""
    return jnp.zeros((), jnp.int32) if _devices.get() == 1 else jax.lax.axis_index(ROWS) * num_rows


def own_rows(values: Shaped[Array, "N *rest"], num_rows: int) -> Shaped[Array, "B *rest"]:
    """Returns the `num_rows` local rows of an array that has all rows."""
    return values if _devices.get() == 1 else jax.lax.dynamic_slice_in_dim(values, first_row(num_rows), num_rows)


def part_of_rows(num_rows: int, parts: int) -> Float[Array, "P B"]:
    """Returns 1 where a local row belongs to a micro-batch, and 0 elsewhere.

    Micro-batches are consecutive rows of the whole batch.

    Args:
        num_rows: Number of local rows.
        parts: Number of micro-batches, which divides the number of all rows.
    """
    row = first_row(num_rows) + jnp.arange(num_rows)
    part = row // (num_rows * _devices.get() // parts)
    return (part[None] == jnp.arange(parts)[:, None]).astype(jnp.float32)
