"""The joint network of transducers with the logits of some frames and rows in memory, computed again for gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from asr_jax.core.devices import traced_for
from asr_jax.kernels.transducer_joint import reference

TILE_LOGITS = 1 << 24
"""Number of logits of a tile on CPUs, over all rows of a device."""
TILE_LOGITS_OF_ACCELERATORS = 1 << 26
"""The same on GPUs and TPUs. Each tile adds its gradient of the output's weights in memory."""


def logits_of_tile() -> int:
    """Returns the number of logits of a tile on the devices that the program is traced for."""
    return TILE_LOGITS if traced_for().platform == "cpu" else TILE_LOGITS_OF_ACCELERATORS


def joint(
    frames: Array, predictions: Array, kernel: Array, bias: Array, labels: Array, **options: Any
) -> tuple[Array, Array]:
    """Computes `api.transducer_joint` for all nodes, padding included."""

    def compute(frames: Array, of_rows: tuple[Array, Array], _: Any) -> tuple[Array, Array]:
        predictions, labels = of_rows
        return reference.joint(frames, predictions, kernel, bias, labels, **options)

    rows, positions, _ = predictions.shape
    tile_frames = max(logits_of_tile() // (rows * positions * len(bias)), 1)
    return in_tiles(compute, frames, (predictions, labels), tile_frames=tile_frames)


def in_tiles(
    compute: Callable[[Any, Any, Any], Any],
    of_frames: Any,
    of_rows: Any,
    *,
    tile_frames: int,
    num_splits: int = 1,
) -> Any:
    """Applies a function of nodes to some frames and some rows at a time, and computes it again in the backward pass.

    Only inputs and outputs of the function are kept, so that memory does not grow with the size of its inner arrays,
    such as the logits of all nodes.

    Args:
        compute: Function of the parts of `of_frames` `[b t …]` and of `of_rows` `[b …]`, and of the number of the first
            frame. Returns a tree of arrays `[b t …]`.
        of_frames: Tree of arrays `[B T …]`.
        of_rows: Tree of arrays `[B …]`.
        tile_frames: Number of frames per tile. 0: all frames.
        num_splits: Number of parts of equal size that rows are split into. Each device keeps its own rows: part s has
            the rows s, s + num_splits, ….

    Returns:
        The outputs for all rows and frames.

    Raises:
        ValueError: If the number of rows is not a multiple of `num_splits`.
    """
    rows, num_frames = jax.tree.leaves(of_frames)[0].shape[:2]
    if rows % num_splits:
        raise ValueError(f"a batch of {rows} rows cannot be split into {num_splits} equal parts")
    if num_splits == 1 and (not tile_frames or tile_frames >= num_frames):
        return compute(of_frames, of_rows, 0)
    tile_frames = min(tile_frames or num_frames, num_frames)
    num_tiles = -(-num_frames // tile_frames)

    def split(array: Array) -> Array:
        return jnp.moveaxis(array.reshape(rows // num_splits, num_splits, *array.shape[1:]), 1, 0)

    def tiled(array: Array) -> Array:
        padding = ((0, 0), (0, num_tiles * tile_frames - num_frames), *((0, 0) for _ in array.shape[2:]))
        each = split(jnp.pad(array, padding))
        return jnp.moveaxis(each.reshape(num_splits, -1, num_tiles, tile_frames, *array.shape[2:]), 2, 1)

    parts, tiles = jax.tree.map(split, of_rows), jax.tree.map(tiled, of_frames)

    @jax.checkpoint
    def of_tile(part: Array, tile: Array) -> Any:
        rest = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, part, keepdims=False), parts)
        frames = jax.tree.map(lambda array: array[part, tile], tiles)
        return compute(frames, rest, tile * tile_frames)

    places = jnp.arange(num_splits * num_tiles)
    outputs = lax.map(lambda place: of_tile(place // num_tiles, place % num_tiles), places)

    def joined(array: Array) -> Array:
        array = array.reshape(num_splits, num_tiles, rows // num_splits, tile_frames, *array.shape[3:])
        array = jnp.moveaxis(array, (2, 0), (0, 1))  # [b parts tiles frames …]
        return array.reshape(rows, num_tiles * tile_frames, *array.shape[4:])[:, :num_frames]

    return jax.tree.map(joined, outputs)
