"""The recursion of transducer lattices over diagonals, with an implementation chosen for the device."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.kernels.implementations import Implementation, module_of
from asr_jax.kernels.lattice_sweep.reference import Start


def lattice_sweep(
    weights: Sequence[Float[Array, "N K B S"]],
    start: Start,
    *,
    spans: tuple[int, ...],
    moves: tuple[int, ...],
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "N K B S"], Float[Array, "N K B"]]:
    """Computes the states of all nodes of K directions: log-sums over the paths from the first node of each row.

    Each diagonal is scaled to a largest state of 0.

    Args:
        weights: Weights of the arcs by their targets, on N diagonals with S labels, one array for each kind of arc.
        start: First nodes.
        spans: Number of diagonals that each kind of arc crosses.
        moves: Number of labels that each kind of arc emits, 0 or 1.
        implementation: "triton" is for arcs of RNN-T, and "mosaic_tpu" for float32.

    Returns:
        The states, and the logarithm of the factor that each diagonal was divided by, in addition to the ones before.
    """

    def reason_against(name: str) -> str:
        if name == "mosaic_tpu" and weights[0].dtype != jnp.float32:
            return f"weights have dtype {weights[0].dtype}: expected float32"
        others = name == "triton" and (spans, moves) != ((1, 1), (0, 1))
        return f"arcs have spans {spans} and moves {moves}: expected (1, 1) and (0, 1), of RNN-T," if others else ""

    module = module_of("lattice_sweep", implementation, weights[0], reason_against=reason_against)
    return module.sweep(weights, start, spans, moves)
