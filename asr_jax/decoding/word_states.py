"""What open words would add if they ended, by a language model on the host, for all prefixes of a batch."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.word_scores import WordScores

MOST_KEPT = 1_000_000
"""Prefixes to remember from one batch to the next: some 300 MB."""


class WordStates:
    """States of the language model and open words, by number. What comes of a state, an open word and a label is looked
    up once, and remembered from batch to batch."""

    def __init__(self, spelling: Spelling, scores: WordScores) -> None:
        self._spelling, self._scores = spelling, scores
        self._forget()

    def _forget(self) -> None:
        start = self._scores.start()
        self._states: list[Any] = [start]
        self._numbers: dict[Any, int] = {start: 0}
        self._parts: list[str] = [""]
        self._part_numbers: dict[str, int] = {"": 0}
        self._ended: dict[tuple[int, int], tuple[int, float]] = {}
        self._after: dict[tuple[int, int, int], tuple[int, int]] = {}

    def begin(self, num_rows: int, beam_width: int) -> None:
        """All prefixes are empty."""
        if len(self._ended) > MOST_KEPT:
            self._forget()
        shape = (num_rows, beam_width)
        self._state, self._part = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._closing = np.zeros(shape, np.float32)

    def follow(self, source: Int[np.ndarray, "B W"], token: Int[np.ndarray, "B W"]) -> None:
        """Each prefix is that of `source`, with the label `token` more where it is not -1."""
        rows = np.arange(len(source))[:, None]
        self._state, self._part, self._closing = (a[rows, source] for a in (self._state, self._part, self._closing))
        new = np.nonzero(token >= 0)
        keys = zip(*(a[new].tolist() for a in (self._state, self._part, token)), strict=True)
        if found := [self._after.get(key) or self._look_up(key) for key in keys]:
            self._state[new], self._part[new] = zip(*found, strict=True)
            self._closing[new] = np.nan

    def closing(self, is_needed: Bool[np.ndarray, " B"]) -> Float[np.ndarray, "B W"]:
        """What each prefix's open word would add; of rows in which it is needed, of others anything."""
        new = np.nonzero(np.isnan(self._closing) & is_needed[:, None])
        keys = list(zip(self._state[new].tolist(), self._part[new].tolist(), strict=True))
        self._closing[new] = [self._end(key)[1] for key in keys]
        return np.nan_to_num(self._closing)

    def _look_up(self, key: tuple[int, int, int]) -> tuple[int, int]:
        """The state and the open word after one more label."""
        state, part, label = key
        if self._spelling.opens[label] and part:
            state, _ = self._end((state, part))
        _, text = self._spelling.extend((), self._parts[part], label)
        part = self._part_numbers.setdefault(text, len(self._parts))
        if part == len(self._parts):
            self._parts.append(text)
        self._after[key] = found = (state, part)
        return found

    def _end(self, key: tuple[int, int]) -> tuple[int, float]:
        """The state after an open word has ended, and what it added; none adds nothing."""
        found = self._ended.get(key)
        if found is None:
            state, part = key
            after, added = (
                self._scores.word(self._states[state], self._parts[part]) if part else (self._states[state], 0.0)
            )
            number = self._numbers.setdefault(after, len(self._states))
            if number == len(self._states):
                self._states.append(after)
            self._ended[key] = found = (number, added)
        return found
