"""The recursion of CTC for NVIDIA GPUs: one program per row and direction, whose states stay in registers (Triton)."""

from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.ctc_sweep.layout import log_probability, prepared
from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.triton_calls import triton_call, warps_of


def sweep(
    emissions: Array, labels: Array, label_lengths: Array, blank_bonus: Array | None = None
) -> tuple[Array, tuple[Array, Array]]:
    """Computes `api.ctc_sweep`."""
    num_frames, num_rows, num_columns = emissions.shape
    width = triton.next_power_of_2(num_columns - 1)
    given = prepared(emissions, labels, label_lengths, blank_bonus, frames=1, rows=1, width=width)
    directions, dtype = len(labels), emissions.dtype
    of_frames = jax.ShapeDtypeStruct(given.emissions.shape, dtype)
    of_rows = jax.ShapeDtypeStruct(given.first.shape, dtype)
    blanks, entered, blank, label, largest = triton_call(
        *given[:3],
        given.first if blank_bonus is None else given.blank_bonus,  # without a bonus the kernel does not read it
        num_frames,
        num_rows,
        kernel=_kernel,
        out=(of_frames, of_frames, of_rows, of_rows, jax.ShapeDtypeStruct((directions, num_rows), dtype)),
        grid=(directions * num_rows,),
        num_warps=warps_of(width),
        WIDTH=width,
        NEVER=NEVER,
        HAS_BONUS=blank_bonus is not None,
    )
    found = log_probability(largest[0], blank[0], label[0], label_lengths)
    states = (jnp.moveaxis(each[..., : num_columns - 1], 0, 1) for each in (blanks, entered))
    return found, (next(states), next(states))


@triton.jit
@no_type_check  # Triton's arguments have no types
def _kernel(
    emissions,
    new,
    first,
    blank_bonus,
    num_frames,
    num_rows,
    blanks,
    entered,
    last_blank,
    last_label,
    largest,
    WIDTH: tl.constexpr,
    NEVER: tl.constexpr,
    HAS_BONUS: tl.constexpr,
):
    """Computes the frames of one row and direction."""
    program = tl.program_id(0)
    direction, row = program // num_rows, program % num_rows
    column = tl.arange(0, WIDTH)
    before = tl.maximum(column - 1, 0)
    is_new = tl.load(new + program * WIDTH + column) > 0
    blank = tl.load(first + program * WIDTH + column)
    label = tl.full([WIDTH], NEVER, blank.dtype)
    if HAS_BONUS:
        bonus = tl.load(blank_bonus + program * WIDTH + column)
    total = tl.sum(tl.where(column == 0, 0.0, 0.0))
    place = (direction * num_frames * num_rows + row) * WIDTH
    for _ in range(num_frames):
        emission = tl.load(emissions + place + column)
        of_blank = tl.load(emissions + place)
        either = tl.maximum(blank, label) + tl.log(1.0 + tl.exp(-tl.abs(blank - label)))
        moved = tl.gather(tl.where(is_new, either, blank), before, 0)
        moved = tl.where(column == 0, NEVER, moved)
        now = tl.maximum(label, moved) + tl.log(1.0 + tl.exp(-tl.abs(label - moved)))
        tl.store(blanks + place + column, either)
        tl.store(entered + place + column, now)
        blank = either + of_blank
        if HAS_BONUS:
            blank += bonus
        label = now + emission
        most = tl.max(tl.maximum(blank, label), 0)
        blank -= most
        label -= most
        total += most
        place += num_rows * WIDTH
    tl.store(last_blank + program * WIDTH + column, blank)
    tl.store(last_label + program * WIDTH + column, label)
    tl.store(largest + program, total)
