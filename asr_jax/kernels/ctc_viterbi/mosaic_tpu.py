"""The most probable path of CTC for TPUs: states stay in VMEM, blocks of frames are read in sequence (Pallas)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int32, UInt8

from asr_jax.kernels.ctc_viterbi.reference import (
    BLANK_FROM_LABEL,
    FROM_BLANK,
    FROM_LABEL,
    STAY,
    Last,
    moved,
    new_labels,
)
from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.tiles_tpu import LANES, ROWS

BLOCK = 1 << 16
"""Values of a block of emissions of `ROWS` rows."""
MOST_LABELS = 4095
"""Largest number of labels whose back-pointers of `LANES` frames fit into VMEM."""


def forward(
    log_probs: Array, lengths: Array, labels: Array, label_lengths: Array, *, blank_id: int
) -> tuple[Last, UInt8[Array, "F R W"]]:
    """Computes `reference.forward`. Back-pointers are by frame, with padded frames, rows and columns."""
    emissions = _emissions(log_probs, labels, label_lengths, blank_id)
    num_frames, num_rows, width = emissions.shape
    frames = min(1 << (max(BLOCK // (ROWS * width), 1).bit_length() - 1), LANES)
    more_rows, num_columns = num_rows - len(labels), labels.shape[1] + 1
    new = jnp.pad(new_labels(labels).astype(jnp.int32), ((0, more_rows), (1, width - num_columns)))
    until = jnp.broadcast_to(jnp.pad(lengths.astype(jnp.int32), (0, more_rows))[:, None], (num_rows, LANES))
    in_time = pl.BlockSpec((frames, ROWS, width), lambda b, t: (t, b, 0))
    once = pl.BlockSpec((ROWS, width), lambda b, t: (b, 0))
    states = jax.ShapeDtypeStruct((num_rows, width), jnp.float32)
    blank, label, pointers = pl.pallas_call(
        functools.partial(_forward_kernel, frames=frames),
        grid=(num_rows // ROWS, num_frames // frames),
        in_specs=[pl.BlockSpec((ROWS, LANES), lambda b, t: (b, 0)), once, in_time],
        out_specs=[once, once, in_time],
        out_shape=[states, states, jax.ShapeDtypeStruct(emissions.shape, jnp.uint8)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="ctc_viterbi",
    )(until, new, emissions)
    return (blank[: len(labels), :num_columns], label[: len(labels), :num_columns]), pointers


def backward(pointers: UInt8[Array, "F R W"], state: Int32[Array, " B"]) -> Int32[Array, "B F"]:
    """Computes `reference.backward`. Frames are padded to a multiple of `LANES`: the states of a row are in lanes."""
    num_frames, num_rows, width = pointers.shape
    blocks = num_frames // LANES
    last = jnp.broadcast_to(jnp.pad(state, (0, num_rows - len(state)))[:, None], (num_rows, LANES))
    states = pl.pallas_call(
        _backward_kernel,
        grid=(num_rows // ROWS, blocks),
        in_specs=[
            pl.BlockSpec((ROWS, LANES), lambda b, t: (b, 0)),
            pl.BlockSpec((LANES, ROWS, width), lambda b, t: (blocks - 1 - t, b, 0)),
        ],
        out_specs=pl.BlockSpec((ROWS, LANES), lambda b, t: (b, blocks - 1 - t)),
        out_shape=jax.ShapeDtypeStruct((num_rows, num_frames), jnp.int32),
        scratch_shapes=[pltpu.VMEM((ROWS, LANES), jnp.int32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="ctc_viterbi_path",
    )(last, pointers)
    return states[: len(state)]


def _emissions(log_probs: Array, labels: Array, label_lengths: Array, blank_id: int) -> Float[Array, "F R W"]:
    """Returns the log-probabilities of the blank (column 0) and of the labels by frame, padded to whole tiles."""
    symbols = jnp.pad(labels, ((0, 0), (1, 0)), constant_values=blank_id)
    used = jnp.arange(symbols.shape[1])[None] <= label_lengths[:, None]
    picked = jnp.take_along_axis(jnp.swapaxes(log_probs, 0, 1), symbols[None], axis=2).astype(jnp.float32)
    emissions = jnp.where(used[None], jnp.maximum(picked, NEVER), NEVER)
    more = [(0, -size % tile) for size, tile in zip(emissions.shape, (LANES, ROWS, LANES), strict=True)]
    return jnp.pad(emissions, more, constant_values=NEVER)


def _forward_kernel(
    until: Any, new: Any, emissions: Any, blank: Any, label: Any, pointers: Any, *, frames: int
) -> None:
    """Computes a block of frames of some rows. `blank` and `label` keep the states between blocks."""
    column = jax.lax.broadcasted_iota(jnp.int32, blank.shape, 1)
    is_label, is_new = column > 0, new[...] > 0
    num_frames = until[:, :1] - pl.program_id(1) * frames

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        blank[...] = jnp.where(is_label, NEVER, 0.0)
        label[...] = jnp.full_like(label, NEVER)

    def step(t: Array, states: tuple[Array, Array]) -> tuple[Array, Array]:
        blank, label = states
        is_frame = t < num_frames
        emission = emissions[t]
        move, skip = pltpu.roll(blank, 1, 1), jnp.where(is_new, pltpu.roll(label, 1, 1), NEVER)
        before = jnp.maximum(move, skip)
        origin = jnp.where(before > label, jnp.where(skip > move, FROM_LABEL, FROM_BLANK), STAY)
        pointer = jnp.where(is_label, origin, STAY) + jnp.where(label > blank, BLANK_FROM_LABEL, STAY)
        pointers[t] = jnp.where(is_frame, pointer, STAY).astype(jnp.uint8)
        entered = jnp.where(is_label, jnp.maximum(label, before), NEVER)
        now = jnp.maximum(blank, label) + emission[:, :1], entered + jnp.where(is_label, emission, NEVER)
        best = jnp.max(jnp.maximum(*now), axis=1, keepdims=True)
        kept = [
            jnp.where(is_frame, jnp.maximum(each - best, NEVER), old) for each, old in zip(now, states, strict=True)
        ]
        return kept[0], kept[1]

    blank[...], label[...] = jax.lax.fori_loop(0, frames, step, (blank[...], label[...]))


def _backward_kernel(last: Any, pointers: Any, states: Any, kept: Any) -> None:
    """Follows the back-pointers of a block of frames of some rows. `kept` has the states between blocks."""

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        kept[...] = last[...]

    frame = jax.lax.broadcasted_iota(jnp.int32, states.shape, 1)
    column = jax.lax.broadcasted_iota(jnp.int32, pointers.shape[1:], 1)

    def step(back: Array, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        state, found = carried
        t = LANES - 1 - back
        here = column == (state + 1) >> 1
        pointer = jnp.sum(jnp.where(here, pointers[t].astype(jnp.int32), 0), axis=1, keepdims=True)
        return state - moved(state, pointer), jnp.where(frame == t, state, found)

    state, states[...] = jax.lax.fori_loop(0, LANES, step, (kept[:, :1], jnp.zeros(states.shape, jnp.int32)))
    kept[...] = jnp.broadcast_to(state, kept.shape)
