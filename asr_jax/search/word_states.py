"""Scores of open words, or of labels, by a language model on the host, for all prefixes of a batch."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.search.word_scores import WordScores
from asr_jax.text.spelling import Spelling

MOST_KEPT = 1_000_000
"""Number of nodes above which the cache is emptied between batches: about 300 MB."""


class WordStates:
    """Cache of language model look-ups.

    A node is a pair of a language model state and an open word. The node after one more label, and the score of its
    word when it ends, are computed once and cached over batches.
    """

    def __init__(self, spelling: Spelling, scores: WordScores) -> None:
        self._spelling, self._scores = spelling, scores
        self._forget()

    def _forget(self) -> None:
        self._states: list[Any] = []
        self._parts: list[str] = []
        self._closing = np.zeros(1024, np.float32)
        self._wordless: dict[Any, int] = {}
        self._ended: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._add(self._scores.start(), "")

    def begin(self, num_rows: int, beam_width: int) -> None:
        """Starts a batch, in which all prefixes are empty."""
        if len(self._parts) > MOST_KEPT:
            self._forget()
        self._node = np.zeros((num_rows, beam_width), np.int64)

    def follow(self, source: Int[np.ndarray, "B W"], token: Int[np.ndarray, "B W"]) -> None:
        """Updates the word state of each prefix after a frame.

        Args:
            source: Slot of each previous prefix; -1 if the slot is unused.
            token: Label that was appended; -1 if none was.
        """
        self._node = np.where(source < 0, 0, np.take_along_axis(self._node, source, axis=1))
        new = np.nonzero(token >= 0)
        keys = (self._node[new] * len(self._spelling.texts) + token[new]).tolist()
        self._node[new] = [self._after.get(key) or self._follow(key) for key in keys]

    def closing(self, is_needed: Bool[np.ndarray, " B"]) -> Float[np.ndarray, "B W"]:
        """Returns the score that each open word adds if it ends. Rows for which it is not needed have any values."""
        nodes = self._node[is_needed]
        for node in np.unique(nodes[np.isnan(self._closing[nodes])]).tolist():
            self._end(node)
        closing = self._closing[self._node]
        return np.where(np.isnan(closing), np.float32(0), closing)

    def _add(self, state: Any, part: str) -> int:
        node = len(self._parts)
        self._states.append(state)
        self._parts.append(part)
        if node == len(self._closing):
            self._closing = np.concatenate([self._closing, np.zeros_like(self._closing)])
        self._closing[node] = np.nan if part else 0.0
        if not part:
            self._wordless[state] = node
        return node

    def _follow(self, key: int) -> int:
        """Returns the node after one more label."""
        node, label = divmod(key, len(self._spelling.texts))
        text = self._spelling.texts[label]
        is_end = self._spelling.opens[label] or self._scores.ends_before(self._parts[node], text[:1])
        before = self._end(node) if is_end else node
        part = self._parts[before] + text
        after = self._add(self._states[before], part) if part else before
        self._after[key] = after
        return after

    def _end(self, node: int) -> int:
        """Returns the node after the end of the open word; the same node if there is no open word."""
        if not self._parts[node]:
            return node
        if node not in self._ended:
            state, added = self._states[node], 0.0
            for word in self._scores.finished(self._parts[node]):
                state, more = self._scores.word(state, word)
                added += more
            self._closing[node] = added
            known = self._wordless.get(state)
            self._ended[node] = self._add(state, "") if known is None else known
        return self._ended[node]


class LabelStates:
    """Cache of look-ups in a language model of labels.

    A node is a state of the language model. The node after one more label, and the score that the label adds, are
    computed once and cached over batches.
    """

    def __init__(self, spelling: Spelling, scores: WordScores) -> None:
        self._symbols, self._scores = spelling.symbols, scores
        self._forget()

    def _forget(self) -> None:
        self._states: list[Any] = [self._scores.start()]
        self._nodes = {self._states[0]: 0}
        self._after: dict[int, tuple[int, float]] = {}

    def begin(self, num_rows: int, beam_width: int) -> None:
        """Starts a batch, in which all prefixes are empty."""
        if len(self._after) > MOST_KEPT:
            self._forget()
        self._node = np.zeros((num_rows, beam_width), np.int64)

    def follow(self, source: Int[np.ndarray, "B W"], token: Int[np.ndarray, "B W"]) -> None:
        """Updates the state of each prefix after a frame.

        Args:
            source: Slot of each previous prefix.
            token: Label that was appended; -1 if none was.
        """
        self._node = np.take_along_axis(self._node, source, axis=1)
        new = np.nonzero(token >= 0)
        keys = (self._node[new] * len(self._symbols) + token[new]).tolist()
        self._node[new] = [self._follow(key)[0] for key in keys]

    def gains(self, slots: Int[np.ndarray, "B P"], tokens: Int[np.ndarray, "B P K"]) -> Float[np.ndarray, "B P K"]:
        """Returns the score that each label adds to the prefix in a slot.

        Args:
            tokens: Labels for each of them.
        """
        keys = np.take_along_axis(self._node, slots, axis=1)[..., None] * len(self._symbols) + tokens
        different, place = np.unique(keys, return_inverse=True)
        gains = np.array([self._follow(key)[1] for key in different.tolist()], np.float32)
        return gains[place].reshape(keys.shape)

    def _follow(self, key: int) -> tuple[int, float]:
        """Returns the node after one more label, and the score that the label adds."""
        if (found := self._after.get(key)) is None:
            node, label = divmod(key, len(self._symbols))
            state, added = self._scores.word(self._states[node], self._symbols[label])
            after = self._nodes.setdefault(state, len(self._states))
            if after == len(self._states):
                self._states.append(state)
            self._after[key] = found = after, added
        return found
