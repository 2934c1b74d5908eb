"""Greedy CTC search on the device: the most likely label of every frame, without repetitions and blanks."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.pytrees import AnyArray, Node
from asr_jax.core.timed_tokens import TimedTokens, TokenSequence
from asr_jax.search.base import StreamSearch


def greedy_search(log_probs: Float[Array, "B T V"], lengths: Int[Array, " B"], *, blank_id: int) -> TimedTokens:
    """Returns one hypothesis per row, with shapes [B 1 T]. It can be jitted with the model, with sharded rows.

    A token's log-probability is the largest one of its frames. The score is the sum of the largest log-probability of
    each frame. A row whose score is not finite has no tokens.

    Args:
        log_probs: Natural log-probabilities.
        lengths: Number of valid frames.
    """
    num_frames = log_probs.shape[1]
    is_there, frame = length_mask(lengths, num_frames), jnp.arange(num_frames, dtype=jnp.int32)
    path = jnp.where(is_there, jnp.argmax(log_probs, axis=-1), blank_id).astype(jnp.int32)
    best = jnp.where(is_there, jnp.max(log_probs, axis=-1), 0.0)
    before = jnp.pad(path[:, :-1], ((0, 0), (1, 0)), constant_values=blank_id)
    is_label = path != blank_id
    token = jnp.cumsum(is_label & (path != before), axis=1, dtype=jnp.int32)
    place = jnp.where(is_label, token - 1, num_frames)  # mode="drop" ignores this index

    def largest(values: Array, start: float, dtype: DTypeLike) -> Array:
        """Returns the largest value of the frames of each token. vmap keeps sharded rows on their devices."""
        empty = jnp.full(num_frames, start, dtype)
        of_row = jax.vmap(lambda place, values: empty.at[place].max(values, mode="drop"))
        return of_row(place, jnp.broadcast_to(values, path.shape))[:, None]

    scores = best.sum(axis=1)
    return TimedTokens(
        tokens=largest(path, 0, jnp.int32),
        starts=-largest(-frame, -num_frames, jnp.int32),
        ends=largest(frame + 1, 0, jnp.int32),
        log_probs=largest(best, -jnp.inf, jnp.float32),
        lengths=jnp.where(jnp.isfinite(scores), token.max(axis=1, initial=0), 0)[:, None],
        scores=scores[:, None],
    )


class BestLabels(Node):
    """The most likely label of each frame, and its natural log-probability."""

    labels: Int[AnyArray, "B T"]
    log_probs: Float[AnyArray, "B T"]

    @classmethod
    def of(cls, log_probs: Float[Array, "B T V"]) -> "BestLabels":
        return cls(jnp.argmax(log_probs, axis=-1).astype(jnp.int32), jnp.max(log_probs, axis=-1))


@dataclass
class _Utterance:
    """Tokens of an utterance so far."""

    tokens: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    score: float = 0.0
    num_frames: int = 0
    before: int = -1
    """Label of the frame before."""

    def add(self, label: int, log_prob: float, *, blank_id: int) -> None:
        """Adds a frame."""
        frame, self.score = self.num_frames, self.score + log_prob
        if label != blank_id and label == self.before:
            self.ends[-1], self.log_probs[-1] = frame + 1, max(self.log_probs[-1], log_prob)
        elif label != blank_id:
            self.tokens.append(label)
            self.starts.append(frame)
            self.ends.append(frame + 1)
            self.log_probs.append(log_prob)
        self.num_frames, self.before = frame + 1, label


class GreedyStreams(StreamSearch):
    """Greedy search of streams. The windows of an utterance give the tokens of `greedy_search` for all its frames."""

    def __init__(self, num_rows: int, *, blank_id: int) -> None:
        self._rows, self._blank_id = [_Utterance() for _ in range(num_rows)], blank_id

    def take(self, found: BestLabels, lengths: Int[np.ndarray, " B"], begins: Bool[np.ndarray, " B"]) -> None:
        labels, log_probs = jax.device_get((found.labels, found.log_probs))
        for row in np.flatnonzero(lengths).tolist():
            if begins[row]:
                self._rows[row] = _Utterance()
            frames = zip(labels[row].tolist(), log_probs[row].tolist(), strict=True)
            for (label, log_prob), _ in zip(frames, range(lengths[row]), strict=False):
                self._rows[row].add(label, log_prob, blank_id=self._blank_id)

    def hypotheses(self, row: int) -> list[TokenSequence]:
        of = self._rows[row]
        return [TokenSequence(tuple(of.tokens), tuple(of.starts), tuple(of.ends), tuple(of.log_probs), of.score)]

    def num_settled(self, row: int) -> int:
        return len(self._rows[row].tokens)
