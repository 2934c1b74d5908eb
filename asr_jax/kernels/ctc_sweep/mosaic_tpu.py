"""The recursion of CTC for TPUs: states stay in VMEM, and blocks of frames are read one after the other (Pallas)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from asr_jax.kernels.ctc_sweep.layout import log_probability, prepared
from asr_jax.kernels.log_space import NEVER, add_in_kernel
from asr_jax.kernels.tiles_tpu import LANES, ROWS, whole_tiles

BLOCK = 1 << 16
"""Values of a block of frames of `ROWS` rows: three arrays, each twice, take 1.5 MB of VMEM."""


def sweep(
    emissions: Array, labels: Array, label_lengths: Array, blank_bonus: Array | None = None
) -> tuple[Array, tuple[Array, Array]]:
    """Computes `api.ctc_sweep`."""
    num_frames, num_rows, num_columns = emissions.shape
    width = whole_tiles(num_columns - 1, LANES)
    frames = min(max(BLOCK // (ROWS * width), 1), num_frames)
    given = prepared(emissions, labels, label_lengths, blank_bonus, frames=frames, rows=ROWS, width=LANES)
    directions, padded_frames, padded_rows, _ = given.emissions.shape
    dtype = emissions.dtype
    in_time = pl.BlockSpec((1, frames, ROWS, width), lambda k, b, t: (k, t, b, 0))
    once = pl.BlockSpec((1, ROWS, width), lambda k, b, t: (k, b, 0))
    total = pl.BlockSpec((1, ROWS, LANES), lambda k, b, t: (k, b, 0))
    of_frames = jax.ShapeDtypeStruct((directions, padded_frames, padded_rows, width), dtype)
    of_rows = jax.ShapeDtypeStruct((directions, padded_rows, width), dtype)
    blanks, entered, blank, label, largest = pl.pallas_call(
        functools.partial(_kernel if blank_bonus is None else _kernel_with_bonus, frames=frames),
        grid=(directions, padded_rows // ROWS, padded_frames // frames),
        in_specs=[in_time, once, once] if blank_bonus is None else [in_time, once, once, once],
        out_specs=[in_time, in_time, once, once, total],
        out_shape=[of_frames, of_frames, of_rows, of_rows, jax.ShapeDtypeStruct((*of_rows.shape[:2], LANES), dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="ctc_sweep",
    )(*given[:3] if blank_bonus is None else given)
    found = log_probability(largest[0, :num_rows, 0], blank[0, :num_rows], label[0, :num_rows], label_lengths)
    states = (jnp.moveaxis(each[:, :num_frames, :num_rows, : num_columns - 1], 0, 1) for each in (blanks, entered))
    return found, (next(states), next(states))


def _kernel(
    emissions: Any,
    new: Any,
    first: Any,
    blanks: Any,
    entered: Any,
    blank: Any,
    label: Any,
    largest: Any,
    *,
    frames: int,
    blank_bonus: Any = None,
) -> None:
    """Computes a block of frames of some rows. `blank`, `label` and `largest` keep the states between blocks."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        blank[0] = first[0]
        label[0] = jnp.full_like(first[0], NEVER)
        largest[0] = jnp.zeros_like(largest[0])

    is_first_column = jax.lax.broadcasted_iota(jnp.int32, first.shape[1:], 1) == 0
    is_new = new[0] > 0

    def step(t: Array, states: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        blank, label, total = states
        emission = emissions[0, t]
        either = add_in_kernel(blank, label)
        before = pltpu.roll(jnp.where(is_new, either, blank), 1, 1)
        now = add_in_kernel(label, jnp.where(is_first_column, NEVER, before))
        blanks[0, t], entered[0, t] = either, now
        of_blank = emission[:, :1] if blank_bonus is None else emission[:, :1] + blank_bonus[0]
        blank, label = either + of_blank, now + emission
        most = jnp.max(jnp.maximum(blank, label), axis=1, keepdims=True)
        return blank - most, label - most, total + most

    blank[0], label[0], largest[0] = jax.lax.fori_loop(0, frames, step, (blank[0], label[0], largest[0]))


def _kernel_with_bonus(emissions: Any, new: Any, first: Any, blank_bonus: Any, *outputs: Any, frames: int) -> None:
    """Computes `_kernel` with a bonus of blanks."""
    _kernel(emissions, new, first, *outputs, frames=frames, blank_bonus=blank_bonus)
