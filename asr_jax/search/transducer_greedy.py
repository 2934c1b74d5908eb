"""Greedy search of transducers on the device, for a batch, by labels instead of frames.

The prediction network runs once per label, not once per frame: for each label, the joint network computes a block of
frames with the same prediction. The first frame with a best label other than the blank gives the next label.

Source: Graves 2012 (arXiv:1211.3711); Bataev et al. 2024, "Label-looping" (arXiv:2406.06220), for the order of loops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.devices import traced_for
from asr_jax.core.timed_tokens import TimedTokens, TokenSequence
from asr_jax.search.base import StreamSearch

MOST, AT_ONCE = 8, 64
"""Largest number of frames of a row for which labels are computed at a time, and on CPUs of all rows together."""


class Decision(NamedTuple):
    """Best label of each frame of a block, for a given prediction."""

    labels: Int[Array, "B W"]
    log_probs: Float[Array, "B W"]
    jumps: Int[Array, "B W"]
    """Number of frames that the label consumes: at least 1 for a blank."""


class Next(NamedTuple):
    """Next label of each row."""

    found: Bool[Array, " B"]
    """Whether there is a label in the block; the other values are meaningless otherwise, except for `at`."""
    at: Int[Array, " B"]
    """Number of frames before the label, or after the last blank."""
    label: Int[Array, " B"]
    log_prob: Float[Array, " B"]
    jump: Int[Array, " B"]


class GreedyState(NamedTuple):
    """State of the search of all rows."""

    frame: Int[Array, " B"]
    at_frame: Int[Array, " B"]
    """Number of labels that were found at `frame`."""
    num: Int[Array, " B"]
    prediction: Any
    """Output and state of the prediction network after the last label."""
    tokens: Int[Array, "B U"]
    starts: Int[Array, "B U"]
    ends: Int[Array, "B U"]
    log_probs: Float[Array, "B U"]
    score: Float[Array, " B"]


class Carried(NamedTuple):
    """State of the search of streams between two windows."""

    prediction: Any
    """Output and state of the prediction network after the last label, a tree of arrays whose first axis has the
    rows."""
    frame: Int[Array, " B"]
    """Frame of the next window at which the search goes on: above 0 after durations that lead beyond a window."""


def greedy_transducer_search(
    lengths: Int[Array, " B"],
    num_frames: int,
    *,
    decide: Callable[[Int[Array, "B W"], Any], Decision],
    start: Any,
    advance: Callable[[Any, Int[Array, " B"]], Any],
    blank_id: int,
    max_symbols: int,
    carried: Carried | None = None,
) -> tuple[TimedTokens, Carried]:
    """Returns one hypothesis per row, with shapes [B 1 U], where U = `num_frames` · `max_symbols`.

    The score is the sum of the log-probabilities of all decisions, including those of blanks.

    Args:
        lengths: Number of valid frames of each row.
        num_frames: Number of frames of the batch.
        decide: Computes the best labels at the given frames with the current predictions.
        start: Prediction before the first label, a tree of arrays whose first axis has the rows.
        advance: Computes the next prediction from the current one and the labels.
        max_symbols: Largest number of labels of one frame.
        carried: State after the window before. The labels of the window are returned, and they may end after it. None:
            rows are whole recordings.

    Returns:
        The hypotheses, and the state after these frames.
    """
    rows, size = len(lengths), num_frames * max_symbols
    # Frames behind the next label are computed in vain. On CPUs, that costs more than further products of many rows.
    block = min(max(AT_ONCE // rows, 1), MOST) if traced_for().platform == "cpu" else MOST

    def is_going(state: GreedyState) -> Bool[Array, ""]:
        return jnp.any(state.frame < lengths)

    def step(state: GreedyState) -> GreedyState:
        frames = state.frame[:, None] + jnp.arange(block)[None]
        decision = decide(jnp.minimum(frames, num_frames - 1), state.prediction)
        visited, at, found = _visited(decision, frames < lengths[:, None], blank_id)
        next_one = Next(found, at, *(each[jnp.arange(rows), jnp.minimum(at, block - 1)] for each in decision))
        state = state._replace(score=state.score + jnp.sum(jnp.where(visited, decision.log_probs, 0), axis=1))
        advanced = advance(state.prediction, jnp.where(found, next_one.label, 0))
        return _after(state, next_one, advanced, lengths if carried is None else None, max_symbols)

    zeros, whole = jnp.zeros(rows, jnp.int32), jnp.zeros((rows, size), jnp.int32)
    nothing = jnp.full((rows, size), -jnp.inf, jnp.float32)
    prediction, frame = carried or Carried(start, zeros)
    state = GreedyState(frame, zeros, zeros, prediction, whole, whole, whole, nothing, jnp.zeros(rows, jnp.float32))
    state = lax.while_loop(is_going, step, state)
    found = (state.tokens, state.starts, state.ends, state.log_probs)
    tokens, starts, ends, log_probs = (values[:, None] for values in found)
    lengths_found = jnp.where(jnp.isfinite(state.score), state.num, 0)
    sequences = TimedTokens(tokens, starts, ends, log_probs, lengths_found[:, None], state.score[:, None])
    return sequences, Carried(state.prediction, state.frame - lengths)


def _visited(
    decision: Decision, inside: Bool[Array, "B W"], blank_id: int
) -> tuple[Bool[Array, "B W"], Int[Array, " B"], Bool[Array, " B"]]:
    """Follows the blanks of a block to the first frame with a label.

    Blanks lead to the next frame whose decision counts. Frames that a duration jumps over are not visited.

    Args:
        decision: Best label of each frame.
        inside: Whether the row has each frame.

    Returns:
        Whether each frame is visited, the number of frames before the label, or after the last blank, and whether there
        is a label.
    """
    is_blank = decision.labels == blank_id

    def visit(carried: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], Array]:
        at, found = carried
        visited = (at == number) & ~found & inside[:, number]
        found |= visited & ~is_blank[:, number]
        at = jnp.where(visited & is_blank[:, number], at + decision.jumps[:, number], at)
        return (at, found), visited

    rows, block = inside.shape
    begin = jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    (at, found), visited = lax.scan(visit, begin, jnp.arange(block))
    return visited.T, at, found


def _after(
    state: GreedyState, next_one: Next, advanced: Any, lengths: Int[Array, " B"] | None, max_symbols: int
) -> GreedyState:
    """Returns the state after the next label of each row, or after a block of blanks.

    Args:
        advanced: Prediction after the next labels.
        lengths: Number of valid frames of each row, with which durations end. None: they may end later.
        max_symbols: Largest number of labels of one frame.
    """
    rows, size = state.tokens.shape
    found, frame = next_one.found, state.frame + next_one.at
    at_frame = jnp.where(next_one.at == 0, state.at_frame, 0) + found
    column = jnp.where(found, state.num, size)  # mode="drop" ignores this index
    jump = jnp.where(found, next_one.jump, 0)
    jump = jnp.where(found & (at_frame >= max_symbols), jnp.maximum(jump, 1), jump)
    ends = frame + jnp.maximum(next_one.jump, 1)

    def written(values: Array, new: Array) -> Array:
        return values.at[jnp.arange(rows), column].set(new.astype(values.dtype), mode="drop")

    return GreedyState(
        frame=frame + jump,
        at_frame=jnp.where(jump > 0, 0, at_frame),
        num=state.num + found,
        prediction=jax.tree.map(
            lambda new, old: jnp.where(found.reshape(-1, *(1,) * (new.ndim - 1)), new, old), advanced, state.prediction
        ),
        tokens=written(state.tokens, next_one.label),
        starts=written(state.starts, frame),
        ends=written(state.ends, ends if lengths is None else jnp.minimum(ends, lengths)),
        log_probs=written(state.log_probs, next_one.log_prob),
        score=state.score,
    )


class GreedyTransducerStreams(StreamSearch):
    """Greedy search of streams: joins the labels of the windows of an utterance."""

    def __init__(self, num_rows: int) -> None:
        self._windows: list[list[tuple[int, TokenSequence]]] = [[] for _ in range(num_rows)]
        self._num_frames = np.zeros(num_rows, np.int64)

    def take(self, found: TimedTokens, lengths: Int[np.ndarray, " B"], begins: Bool[np.ndarray, " B"]) -> None:
        found = jax.device_get(found)
        for row in np.flatnonzero(lengths).tolist():
            if begins[row]:
                self._windows[row], self._num_frames[row] = [], 0
            [sequence] = found.sequences(row)
            self._windows[row].append((int(self._num_frames[row]), sequence))
            self._num_frames[row] += lengths[row]

    def hypotheses(self, row: int) -> list[TokenSequence]:
        windows, last = self._windows[row], int(self._num_frames[row])
        return [
            TokenSequence(
                tokens=tuple(token for _, each in windows for token in each.tokens),
                starts=tuple(first + start for first, each in windows for start in each.starts),
                ends=tuple(min(first + end, last) for first, each in windows for end in each.ends),
                log_probs=tuple(value for _, each in windows for value in each.log_probs),
                score=sum(each.score for _, each in windows),
            )
        ]

    def num_settled(self, row: int) -> int:
        return sum(len(each.tokens) for _, each in self._windows[row])
