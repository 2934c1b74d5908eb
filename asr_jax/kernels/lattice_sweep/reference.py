"""The reference implementation of the recursion of transducer lattices: a scan over diagonals."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.kernels.log_space import NEVER, add


class Start(NamedTuple):
    """First node of each direction and row."""

    diagonal: Int[Array, "K B"]
    column: Bool[Array, "K B S"]
    """True at the label of the node."""


def sweep(
    weights: Sequence[Float[Array, "N K B S"]], start: Start, spans: tuple[int, ...], moves: tuple[int, ...]
) -> tuple[Float[Array, "N K B S"], Float[Array, "N K B"]]:
    """Computes `api.lattice_sweep`."""
    nothing = jnp.full(weights[0].shape[1:], NEVER, weights[0].dtype)

    def by_one(states: Array) -> Array:
        return jnp.pad(states[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=NEVER)

    def step(history: tuple[Array, ...], given: tuple[Array, Sequence[Array]]) -> tuple[Any, Any]:
        number, arcs = given
        state = functools.reduce(add, arrivals(history, arcs, spans, moves, by_one=by_one))
        state = jnp.where((number == start.diagonal)[..., None] & start.column, 0, jnp.maximum(state, NEVER))
        largest = state.max(axis=-1)
        largest = jnp.where(largest < NEVER / 2, 0, largest)
        scaled = tuple(each - largest[..., None] for each in (state, *history[:-1]))
        return scaled, (scaled[0], largest)

    _, found = lax.scan(step, (nothing,) * max(spans), (jnp.arange(len(weights[0])), tuple(weights)))
    states, scales = found
    return states, scales


def arrivals(
    history: Sequence[Array], arcs: Sequence[Array], spans: tuple[int, ...], moves: tuple[int, ...], *, by_one: Any
) -> list[Array]:
    """Returns the log-probabilities of the paths that arrive at a diagonal, by kind of arc.

    Args:
        history: States of the last diagonals, the last one first.
        arcs: Weights of the arcs that arrive.
        by_one: Function that moves states to the next label.
    """
    sources = (history[span - 1] for span in spans)
    moved = (by_one(source) if move else source for source, move in zip(sources, moves, strict=True))
    return [source + weight for source, weight in zip(moved, arcs, strict=True)]
