"""Random state passing: the recurrent states after a batch are the initial states of the next batch.

The utterances of a sequence of batches are unrelated. Their states teach the model to continue from states other than
zeros, as it does in recordings that are longer than any training utterance.

Source: CAIMAN-ASR's train_utils/rsp.py at version 1.14. Differs from: batches may have different numbers of rows. A row
takes the state of the same row in the last batch that has it; rows without one start with zeros. As in CAIMAN-ASR, a
voided update ends the sequence.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Node, Tree
from asr_jax.core.random_streams import GENERATOR
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, settings

PASSED = "passed"
"""Collection of Flax variables with the states that modules pass on. The first axis of each array has the rows."""
STREAM = 0x52535021
"""Number of the random stream of the lengths of sequences."""


@settings
class StatePassing:
    """Settings of random state passing between batches, for encoders and prediction networks with LSTMs."""

    lengths: tuple[NonNegativeFloat, ...] = ()
    """Relative frequencies of sequences of 1, 2, 3, … batches that pass states on. CAIMAN-ASR uses 99 0 1. Empty: no
    states are passed."""
    after: NonNegativeInt = 0
    """Number of updates before the first states are passed. CAIMAN-ASR: warm-up, hold and three half-lives."""

    def problems(self) -> Iterator[str]:
        if self.lengths and not sum(self.lengths):
            yield f"lengths is {self.lengths}: expected a frequency above 0"

    @property
    def is_on(self) -> bool:
        """Whether some sequences have more than one batch."""
        return sum(self.lengths[1:]) > 0


class Passed(Node):
    """States that the last batch passed on."""

    states: Tree
    """State of each row of a batch, for the rows of the largest batch; zeros for rows without a state."""
    position: Int[Array, ""]
    """Position in the plan of the last batch; -1 before the first one."""
    row: Int[Array, ""]
    """Number of rows of that batch that were computed before, in other parts of it."""
    left: Int[Array, ""]
    """Number of batches that remain in the sequence, including the last one."""


def no_states(states: Tree, num_rows: int) -> Passed:
    """Returns the states before the first batch.

    Args:
        states: Shapes of the states of any number of rows.
        num_rows: Rows of the largest batch.
    """
    zeros = jax.tree.map(lambda each: jnp.zeros((num_rows, *each.shape[1:]), each.dtype), states)
    return Passed(zeros, jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32))


def reset(passed: Passed) -> Passed:
    """Returns `passed` with zeros as states, at the end of a sequence."""
    return passed.replace(states=jax.tree.map(jnp.zeros_like, passed.states), left=jnp.ones_like(passed.left))


def before_batch(
    settings: StatePassing,
    passed: Passed,
    position: Int[Array, ""],
    *,
    key: UInt32[Array, "2"],
    updates: Int[Array, ""],
) -> Passed:
    """Begins a batch, or continues with another part of it."""
    is_new = position != passed.position
    left = passed.left - 1
    ends = is_new & ((left <= 0) | (updates < settings.after))
    of_batch = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), STREAM)
    drawn = jax.random.categorical(
        jax.random.fold_in(of_batch, position), jnp.log(jnp.asarray(settings.lengths, jnp.float32))
    )
    return Passed(
        jax.tree.map(lambda each: jnp.where(ends, 0, each), passed.states),
        position,
        jnp.where(is_new, 0, passed.row),
        jnp.where(ends, drawn.astype(jnp.int32) + 1, jnp.where(is_new, left, passed.left)),
    )


def states_of(passed: Passed, num_rows: int) -> Tree:
    """Returns the states of the next `num_rows` rows of the batch; zeros for padding rows behind the largest batch."""
    rows = passed.row + jnp.arange(num_rows)
    return jax.tree.map(lambda each: jnp.take(each, rows, axis=0, mode="fill", fill_value=0), passed.states)


def after_rows(passed: Passed, states: Tree, num_rows: int) -> Passed:
    """Returns `passed` with the states after the next rows of the batch."""
    rows = passed.row + jnp.arange(num_rows)
    written = jax.tree.map(
        lambda each, new: each.at[rows].set(jax.lax.stop_gradient(new).astype(each.dtype), mode="drop"),
        passed.states,
        states,
    )
    return passed.replace(states=written, row=passed.row + num_rows)


def check_passes(states: Tree) -> None:
    """Checks that a model passes states on.

    Raises:
        UserError: If it has none.
    """
    if not jax.tree.leaves(states):
        raise UserError(
            "training.pass_states.lengths is set, but neither the encoder nor a prediction network has LSTMs: remove it"
        )
