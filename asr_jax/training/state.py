"""Training state."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

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
    least_wer: Float[Array, ""]
    """Least word error rate of the validations so far, which can begin penalties; infinite before the first one."""
    key: UInt32[Array, "2"]
    """Data of the threefry key that all random numbers of training are derived from. It never changes."""

    @property
    def carried(self) -> tuple[Tree, Any]:
        """Values that each batch takes from the batch before: `batch_stats` and `passed`."""
        return self.batch_stats, self.passed


def with_wer(state: TrainState, wer: float | None) -> TrainState:
    """Returns the state after a validation.

    Args:
        wer: Word error rate of all sets. None: it is not finite, or the model recognises nothing.
    """
    if wer is None:
        return state
    least = np.minimum(jax.device_get(state.least_wer), np.float32(wer))
    return state.replace(least_wer=jax.device_put(least, state.least_wer.sharding))
