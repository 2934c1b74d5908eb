"""Token sequences with frame times: the output of every search, for all heads."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer

from asr_jax.core.pytrees import AnyArray, Node


class TokenSequence(NamedTuple):
    """One hypothesis of an utterance, on the host. Frame numbers refer to the frames that the head reads."""

    tokens: tuple[int, ...]
    starts: tuple[int, ...]
    """First frame of each token."""
    ends: tuple[int, ...]
    """Frame after the last frame of each token."""
    log_probs: tuple[float, ...]
    """Natural logarithm of each token's probability."""
    score: float
    """Score that orders the hypotheses of an utterance: natural logarithm of the probability, plus the contributions
    of language models and hot words."""

    @classmethod
    def of(
        cls,
        tokens: Integer[np.ndarray, " U"],
        starts: Integer[np.ndarray, " U"],
        ends: Integer[np.ndarray, " U"],
        log_probs: Float[np.ndarray, " U"],
        *,
        score: float,
    ) -> "TokenSequence":
        """Returns a sequence from arrays."""
        return cls(
            tuple(tokens.tolist()), tuple(starts.tolist()), tuple(ends.tolist()), tuple(log_probs.tolist()), score
        )


class TimedTokens(Node):
    """N-best lists of a batch, best first, with static shapes.

    B: rows, N: hypotheses, U: the largest number of tokens.
    """

    tokens: Int[AnyArray, "B N U"]
    starts: Int[AnyArray, "B N U"]
    ends: Int[AnyArray, "B N U"]
    log_probs: Float[AnyArray, "B N U"]
    lengths: Int[AnyArray, "B N"]
    """Number of tokens; -1 if the list has fewer hypotheses."""
    scores: Float[AnyArray, "B N"]

    @classmethod
    def of(cls, lists: Sequence[Sequence[TokenSequence]]) -> "TimedTokens":
        """Returns n-best lists as NumPy arrays, padded to the longest list and the longest sequence."""
        num = max((len(hypotheses) for hypotheses in lists), default=0)
        longest = max((len(each.tokens) for hypotheses in lists for each in hypotheses), default=0)
        tokens, starts, ends = (np.zeros((len(lists), num, longest), np.int32) for _ in range(3))
        log_probs = np.zeros((len(lists), num, longest), np.float32)
        lengths, scores = np.full((len(lists), num), -1, np.int32), np.full((len(lists), num), -np.inf, np.float64)
        for row, hypotheses in enumerate(lists):
            for place, each in enumerate(hypotheses):
                size = len(each.tokens)
                lengths[row, place], scores[row, place] = size, each.score
                tokens[row, place, :size], starts[row, place, :size] = each.tokens, each.starts
                ends[row, place, :size], log_probs[row, place, :size] = each.ends, each.log_probs
        return cls(tokens, starts, ends, log_probs, lengths, scores)

    def sequences(self, row: int) -> list[TokenSequence]:
        """Returns the n-best list of a row. The arrays must be on the host."""
        found = []
        for place, size in enumerate(self.lengths[row].tolist()):
            if size >= 0:
                parts = (each[row, place, :size] for each in (self.tokens, self.starts, self.ends, self.log_probs))
                found.append(TokenSequence.of(*parts, score=float(self.scores[row, place])))
        return found
