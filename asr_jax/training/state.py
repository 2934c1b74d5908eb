"""Training state."""

from typing import Any

from jaxtyping import Array, Int, UInt32

from asr_jax.core.pytrees import Node, Tree
from asr_jax.optim.loss_scale import Scaling


class TrainState(Node):
    """All values that an update changes, except the averaged parameters, which are saved separately."""

    updates: Int[Array, ""]
    """Number of updates applied so far. Schedules and averages depend on it."""
    params: Tree
    batch_stats: Tree
    """Running statistics of normalisation; empty if the model has none."""
    opt_state: Any
    passed: Any
    """States that the last batch passed on (`nn.recurrent.state_passing.Passed`); empty without state passing."""
    scaling: Scaling
    """Scale of the loss; 1 except with precision f16."""
    key: UInt32[Array, "2"]
    """Data of the threefry key that all random numbers of training are derived from. It never changes."""

    @property
    def carried(self) -> tuple[Tree, Any]:
        """Values that each batch takes from the batch before: `batch_stats` and `passed`."""
        return self.batch_stats, self.passed
