"""States that a batch passes on to the next batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.nn.lstm import LSTM
from asr_jax.nn.prediction import LSTMPrediction
from asr_jax.nn.state_passing import PASSED, StatePassing, after_rows, before_batch, no_states, reset, states_of
from tests.support import assert_close

STEP = jnp.int32(1)
KEY = jax.random.key_data(jax.random.key(0))


def test_two_utterances_are_one_sequence_for_an_lstm():
    module, (first, second) = LSTM(6, 2), jax.random.normal(jax.random.key(1), (2, 3, 7, 5))
    lengths = jnp.array([7, 4, 1])
    variables = module.init(jax.random.key(0), first, step=None)
    zeros = {
        "state": jax.tree.map(
            lambda each: each.swapaxes(0, 1)[:, :, 0] * 0, module.apply(variables, first, step=None)[1]
        )
    }
    passed = {PASSED: zeros}
    for frames in (first, second):
        (outputs, _), passed = module.apply(
            variables | passed, frames, lengths, step=STEP, passed_after=lengths, mutable=[PASSED]
        )
    for row, length in enumerate(lengths.tolist()):
        both = jnp.concatenate([first[row, :length], second[row, :length]])[None]
        expected = module.apply(variables, both, step=None)[0][0, length:]
        assert_close(outputs[row, :length], expected, atol=1e-6)


def test_two_transcripts_are_one_sequence_for_a_prediction_network():
    module = LSTMPrediction(6, 2, dropout=0.0).build(vocab_size=9, blank_id=8, dtype=jnp.float32)
    first, second = jnp.array([[1, 2, 3], [4, 0, 0], [0, 0, 0]]), jnp.array([[5, 6], [7, 1], [2, 3]])
    lengths = (jnp.array([3, 1, 0]), jnp.array([2, 2, 2]))
    variables = module.init(jax.random.key(0), first, lengths[0], step=None)
    states = jax.eval_shape(
        lambda: module.apply(
            variables, first, lengths[0], step=STEP, mutable=[PASSED], rngs={"dropout": jax.random.key(0)}
        )
    )[1][PASSED]
    passed = {PASSED: jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), states)}
    for labels, number in zip((first, second), lengths, strict=True):
        outputs, passed = module.apply(variables | passed, labels, number, step=STEP, mutable=[PASSED])
    for row, number in enumerate(lengths[0].tolist()):
        both = jnp.concatenate([first[row, :number], second[row]])[None]
        expected = module.apply(variables, both, jnp.array([both.shape[1]]), step=None)[0, number:]
        assert_close(outputs[row], expected, atol=1e-6)


def run(settings, positions, *, rows=(2,), updates=0):
    """Adds 1 to the states of each batch, which has parts of `rows` rows; returns the states before each batch."""
    passed, found = no_states({"x": jax.ShapeDtypeStruct((5, 3), jnp.float32)}, sum(rows)), []
    for position in positions:
        before = []
        for number in rows:
            passed = before_batch(settings, passed, jnp.int32(position), key=KEY, updates=jnp.int32(updates))
            states = states_of(passed, number)
            before += states["x"][:, 0].tolist()
            passed = after_rows(passed, jax.tree.map(lambda each: each + 1, states), number)
        found.append(before)
    return found, passed


def test_sequences_have_the_given_lengths():
    found, passed = run(StatePassing((0.0, 0.0, 1.0)), range(7))
    assert found == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2], [0, 0]]
    assert run(StatePassing((0.0, 0.0, 1.0)), range(4), rows=(1, 1))[0] == found[:4], "parts of batches"
    assert run(StatePassing((0.0, 1.0), after=9), range(3), updates=8)[0] == [[0, 0]] * 3
    after, _ = reset(passed), None
    assert not np.any(after.states["x"])
    begun = before_batch(StatePassing((0.0, 1.0)), after, jnp.int32(99), key=KEY, updates=jnp.int32(0))
    assert int(begun.left) == 2


def test_lengths_of_sequences_are_drawn_with_their_frequencies():
    settings, begun = StatePassing((3.0, 0.0, 1.0)), 0
    positions = jnp.arange(4000)
    ends = no_states({}, 1)
    draw = jax.vmap(lambda position: before_batch(settings, ends, position, key=KEY, updates=jnp.int32(0)).left)
    drawn = np.asarray(draw(positions))
    begun = np.bincount(drawn, minlength=4)[1:] / len(drawn)
    assert_close(begun, [0.75, 0, 0.25], atol=0.03)


def test_rows_beyond_the_largest_batch_have_no_state():
    passed = no_states({"x": jax.ShapeDtypeStruct((1, 1), jnp.float32)}, 3)
    passed = before_batch(StatePassing((0.0, 1.0)), passed, jnp.int32(0), key=KEY, updates=jnp.int32(0))
    passed = after_rows(passed, {"x": jnp.full((4, 1), 5.0)}, 4)
    passed = before_batch(StatePassing((0.0, 1.0)), passed, jnp.int32(1), key=KEY, updates=jnp.int32(0))
    assert states_of(passed, 4)["x"][:, 0].tolist() == [5, 5, 5, 0]


@pytest.mark.parametrize(("lengths", "after"), [((-1.0, 2.0), 0), ((0.0, 0.0), 0), ((1.0,), -1)])
def test_settings_are_checked(lengths, after):
    with pytest.raises(ValueError, match="expected"):
        StatePassing(lengths, after)
