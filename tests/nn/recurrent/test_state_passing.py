"""States that a batch passes on to the next batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.nn.recurrent.lstm import LSTM
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.nn.recurrent.state_passing import (
    PASSED,
    StatePassing,
    after_rows,
    before_batch,
    no_states,
    reset,
    states_of,
)
from tests.heads.drawn_params import drawn_params
from tests.support import assert_close

KEY = jax.device_put(np.array([0, 5], np.uint32))


def in_two_batches(apply, variables, batches):
    """Returns the outputs of two batches. The second batch begins with the states after the first one."""
    run = jax.jit(lambda variables, *batch: apply(variables, *batch, step=jnp.int32(1), mutable=[PASSED]))
    shapes, outputs = jax.eval_shape(run, variables, *batches[0])[1], []
    passed = jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), shapes)
    for batch in batches:
        found, passed = run(variables | passed, *batch)
        outputs.append(found)
    return outputs


def test_two_utterances_are_one_sequence_for_an_lstm():
    module, lengths = LSTM(6, 2), np.array([7, 4, 1])
    first, second = np.random.default_rng(1).normal(size=(2, 3, 7, 5)).astype(np.float32)
    variables = {"params": drawn_params(module, first)}

    def apply(variables, frames, lengths, **options):
        (outputs, _), passed = module.apply(variables, frames, lengths, passed_after=lengths, **options)
        return outputs, passed

    _, outputs = in_two_batches(apply, variables, [(first, lengths), (second, lengths)])
    both = np.zeros((3, 14, 5), np.float32)
    for row, length in enumerate(lengths):
        both[row, : 2 * length] = np.concatenate([first[row, :length], second[row, :length]])
    expected, _ = jax.device_get(jax.jit(lambda *given: module.apply(*given, step=None))(variables, both))
    for row, length in enumerate(lengths):
        assert_close(np.asarray(outputs)[row, :length], expected[row, length : 2 * length], atol=1e-6)


def test_two_transcripts_are_one_sequence_for_a_prediction_network():
    module = LSTMPrediction(6, 2, dropout=0.0).build(vocab_size=9, blank_id=8, dtype=jnp.float32)
    first, second = np.array([[1, 2, 3], [4, 0, 0], [0, 0, 0]]), np.array([[5, 6, 0], [7, 1, 0], [2, 3, 0]])
    lengths = np.array([3, 1, 0]), np.array([2, 2, 2])
    variables = {"params": drawn_params(module, first, lengths[0])}
    _, outputs = in_two_batches(module.apply, variables, [(first, lengths[0]), (second, lengths[1])])
    both = np.zeros((3, 5), int)
    for row, number in enumerate(lengths[0]):
        both[row, : number + 2] = np.concatenate([first[row, :number], second[row, :2]])
    run = jax.jit(lambda *given: module.apply(*given, step=None))
    expected = jax.device_get(run(variables, both, sum(lengths)))
    for row, number in enumerate(lengths[0]):
        assert_close(np.asarray(outputs)[row, :3], expected[row, number : number + 3], atol=1e-6)


@partial(jax.jit, static_argnames=("settings", "rows"))
def after_batch(passed, position, updates, *, settings, rows):
    """Adds 1 to the states of a batch, which has parts of `rows` rows; returns the states before it as well."""
    before = []
    for number in rows:
        passed = before_batch(settings, passed, position, key=KEY, updates=updates)
        states = states_of(passed, number)
        before.append(states["x"][:, 0])
        passed = after_rows(passed, jax.tree.map(lambda each: each + 1, states), number)
    return jnp.concatenate(before), passed


def run(settings, positions, *, rows=(2,), updates=0):
    """Returns the states before each batch, and those after the last one."""
    passed, found = jax.jit(no_states, static_argnums=1)({"x": np.zeros((5, 3), np.float32)}, sum(rows)), []
    for position in positions:
        before, passed = after_batch(passed, np.int32(position), np.int32(updates), settings=settings, rows=rows)
        found.append(np.asarray(before).tolist())
    return found, passed


def test_sequences_have_the_given_lengths():
    found, passed = run(StatePassing((0.0, 0.0, 1.0)), range(7))
    assert found == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2], [0, 0]]
    assert run(StatePassing((0.0, 0.0, 1.0)), range(4), rows=(1, 1))[0] == found[:4], "parts of batches"
    assert run(StatePassing((0.0, 1.0), after=9), range(3), updates=8)[0] == [[0, 0]] * 3

    @jax.jit
    def again(passed):
        after = reset(passed)
        return after, before_batch(StatePassing((0.0, 1.0)), after, jnp.int32(99), key=KEY, updates=jnp.int32(0))

    after, begun = jax.device_get(again(passed))
    assert not np.any(after.states["x"])
    assert int(begun.left) == 2


def test_lengths_of_sequences_are_drawn_with_their_frequencies():
    settings = StatePassing((3.0, 0.0, 1.0))

    @jax.jit
    @jax.vmap
    def draw(position):
        return before_batch(settings, no_states({}, 1), position, key=KEY, updates=jnp.int32(0)).left

    drawn = np.asarray(draw(np.arange(4000, dtype=np.int32)))
    begun = np.bincount(drawn, minlength=4)[1:] / len(drawn)
    assert_close(begun, [0.75, 0, 0.25], atol=0.03)


def test_rows_beyond_the_largest_batch_have_no_state():
    @jax.jit
    def run():
        passed = no_states({"x": jax.ShapeDtypeStruct((1, 1), jnp.float32)}, 3)
        passed = before_batch(StatePassing((0.0, 1.0)), passed, jnp.int32(0), key=KEY, updates=jnp.int32(0))
        passed = after_rows(passed, {"x": jnp.full((4, 1), 5.0)}, 4)
        passed = before_batch(StatePassing((0.0, 1.0)), passed, jnp.int32(1), key=KEY, updates=jnp.int32(0))
        return states_of(passed, 4)

    assert np.asarray(run()["x"])[:, 0].tolist() == [5, 5, 5, 0]


@pytest.mark.parametrize(("lengths", "after"), [((-1.0, 2.0), 0), ((0.0, 0.0), 0), ((1.0,), -1)])
def test_settings_are_checked(lengths, after):
    with pytest.raises(ValueError, match="expected"):
        StatePassing(lengths, after)
