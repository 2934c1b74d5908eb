"""Streams of random numbers for each batch of a plan."""

import jax
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

GENERATOR = "threefry2x32"
STREAMS = ("dropout", "augment", "regularise", "dither", "mask")


def random_streams(key: UInt32[Array, "2"], position: Int[Array, ""]) -> dict[str, PRNGKeyArray]:
    """Returns a key for each stream of random numbers.

    Args:
        key: Data of the run's key.
        position: Position of the batch in the plan.
    """
    folded = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), position)
    return {name: jax.random.fold_in(folded, i) for i, name in enumerate(STREAMS)}
