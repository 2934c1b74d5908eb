"""What training changes."""

from typing import Any

from jaxtyping import Array, Int, UInt32

from asr_jax.core.pytrees import Node, Tree
from asr_jax.optim.loss_scale import Scaling


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
