"""The recursion of lattices of RNN-T for NVIDIA GPUs: one program per row and direction (Triton)."""

from collections.abc import Sequence
from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.lattice_sweep.reference import Start
from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.triton_calls import triton_call, warps_of


def sweep(
    weights: Sequence[Array], start: Start, spans: tuple[int, ...], moves: tuple[int, ...]
) -> tuple[Array, Array]:
    """Computes `api.lattice_sweep` for arcs to the next diagonal."""
    num_diagonals, directions, num_rows, num_columns = weights[0].shape
    width, dtype = triton.next_power_of_2(num_columns), weights[0].dtype
    more = ((0, 0), (0, 0), (0, width - num_columns))
    blanks, labels = (jnp.pad(each, ((0, 0), *more), constant_values=NEVER) for each in weights)
    states, scales = triton_call(
        blanks,
        labels,
        jnp.pad(start.column.astype(dtype), more),
        start.diagonal.astype(jnp.int32),
        num_diagonals,
        directions * num_rows,
        kernel=_kernel,
        out=(
            jax.ShapeDtypeStruct(blanks.shape, dtype),
            jax.ShapeDtypeStruct((num_diagonals, directions, num_rows), dtype),
        ),
        grid=(directions * num_rows,),
        num_warps=warps_of(width),
        WIDTH=width,
        NEVER=NEVER,
    )
    return states[..., :num_columns], scales


@triton.jit
@no_type_check  # Triton's arguments have no types
def _kernel(
    blanks,
    labels,
    columns,
    first,
    num_diagonals,
    num_programs,
    states,
    scales,
    WIDTH: tl.constexpr,
    NEVER: tl.constexpr,
):
    """Computes the diagonals of one row and direction."""
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    before = tl.maximum(column - 1, 0)
    is_start = tl.load(columns + program * WIDTH + column) > 0
    starts_at = tl.load(first + program)
    state = tl.full([WIDTH], NEVER, states.dtype.element_ty)
    for number in range(num_diagonals):
        place = number * num_programs + program
        of_blank = state + tl.load(blanks + place * WIDTH + column)
        moved = tl.where(column == 0, NEVER, tl.gather(state, before, 0))
        of_label = moved + tl.load(labels + place * WIDTH + column)
        state = tl.maximum(of_blank, of_label) + tl.log(1.0 + tl.exp(-tl.abs(of_blank - of_label)))
        state = tl.where((number == starts_at) & is_start, 0.0, tl.maximum(state, NEVER))
        largest = tl.max(state, 0)
        largest = tl.where(largest < NEVER / 2, 0.0, largest)
        state -= largest
        tl.store(states + place * WIDTH + column, state)
        tl.store(scales + place, largest)
