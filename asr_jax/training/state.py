"""What training changes."""

from typing import Any

import jax
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from asr_jax.core.pytrees import Node, Tree
from asr_jax.optim.loss_scale import Scaling

GENERATOR = "threefry2x32"
STREAMS = ("dropout", "augment", "regularise", "dither", "mask")


class TrainState(Node):
    """Everything that an update changes, but for the averaged weights, which are saved on their own."""

    updates: Int[Array, ""]
    """Updates applied so far: what schedules and averages read."""
    params: Tree
    batch_stats: Tree
    """Running statistics of normalisation; empty where the model has none."""
    opt_state: Any
    scaling: Scaling
    """Scale of the loss: 1 but for float16."""
    key: UInt32[Array, "2"]
    """Data of the (threefry) key that all random numbers of training are folded from; it never changes."""


def random_streams(key: UInt32[Array, "2"], position: Int[Array, ""]) -> dict[str, PRNGKeyArray]:
    """A key for each stream of random numbers, for the batch at a position of the plan."""
    folded = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), position)
    return {name: jax.random.fold_in(folded, i) for i, name in enumerate(STREAMS)}
