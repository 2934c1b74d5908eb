"""The recursion of transducer lattices for TPUs: states stay in VMEM, blocks of diagonals come in order (Pallas)."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from asr_jax.kernels.lattice_sweep.reference import Start, arrivals
from asr_jax.kernels.log_space import NEVER, add_in_kernel
from asr_jax.kernels.tiles_tpu import LANES, ROWS, whole_tiles

BLOCK = 1 << 18
"""Values of all arrays in a block of diagonals of `ROWS` rows; each is twice in VMEM: 2 MB."""


def sweep(
    weights: Sequence[Array], start: Start, spans: tuple[int, ...], moves: tuple[int, ...]
) -> tuple[Array, Array]:
    """Computes `api.lattice_sweep`."""
    num_diagonals, directions, num_rows, num_columns = weights[0].shape
    width, rows = whole_tiles(num_columns, LANES), whole_tiles(num_rows, ROWS)
    size = min(max(BLOCK // (ROWS * (width * (len(weights) + 1) + LANES)), 1), num_diagonals)
    diagonals = whole_tiles(num_diagonals, size)
    dtype = weights[0].dtype
    more = ((0, diagonals - num_diagonals), (0, 0), (0, rows - num_rows), (0, width - num_columns))
    arcs = [jnp.moveaxis(jnp.pad(each, more, constant_values=NEVER), 1, 0) for each in weights]
    column = jnp.pad(start.column.astype(dtype), more[1:])
    diagonal = jnp.pad(start.diagonal, more[1:3], constant_values=-1)
    diagonal = jnp.broadcast_to(diagonal[..., None], (directions, rows, LANES)).astype(jnp.int32)

    def in_order(size_of_row: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, size, ROWS, size_of_row), lambda k, b, n: (k, n, b, 0))

    def once(size_of_row: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, ROWS, size_of_row), lambda k, b, n: (k, b, 0))

    states, scales = pl.pallas_call(
        functools.partial(_kernel, spans=spans, moves=moves, size=size),
        grid=(directions, rows // ROWS, diagonals // size),
        in_specs=[once(LANES), once(width), *([in_order(width)] * len(arcs))],
        out_specs=[in_order(width), in_order(LANES)],
        out_shape=[jax.ShapeDtypeStruct((directions, diagonals, rows, of_row), dtype) for of_row in (width, LANES)],
        scratch_shapes=[pltpu.VMEM((max(spans), ROWS, width), dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="lattice_sweep",
    )(diagonal, column, *arcs)
    states, scales = (jnp.moveaxis(each[:, :num_diagonals, :num_rows], 0, 1) for each in (states, scales))
    return states[..., :num_columns], scales[..., 0]


def _kernel(first: Any, column: Any, *refs: Any, spans: tuple[int, ...], moves: tuple[int, ...], size: int) -> None:
    """Computes a block of diagonals of some rows. The scratch memory keeps the last states between blocks."""
    *arcs, states, scales, kept = refs
    block = pl.program_id(2)

    @pl.when(block == 0)
    def _() -> None:
        kept[...] = jnp.full_like(kept, NEVER)

    is_first_column = jax.lax.broadcasted_iota(jnp.int32, column.shape[1:], 1) == 0
    starts_at, is_start = first[0][:, :1], column[0] > 0

    def by_one(values: Array) -> Array:
        return jnp.where(is_first_column, NEVER, pltpu.roll(values, 1, 1))

    def step(number: Array, history: tuple[Array, ...]) -> tuple[Array, ...]:
        arriving = arrivals(history, [each[0, number] for each in arcs], spans, moves, by_one=by_one)
        state = jnp.maximum(functools.reduce(add_in_kernel, arriving), NEVER)
        state = jnp.where((block * size + number == starts_at) & is_start, 0.0, state)
        largest = jnp.max(state, axis=1, keepdims=True)
        largest = jnp.where(largest < NEVER / 2, 0.0, largest)
        scaled = tuple(each - largest for each in (state, *history[:-1]))
        states[0, number] = scaled[0]
        scales[0, number] = jnp.broadcast_to(largest, scales.shape[2:])
        return scaled

    history = jax.lax.fori_loop(0, size, step, tuple(kept[i] for i in range(max(spans))))
    for i, each in enumerate(history):
        kept[i] = each
