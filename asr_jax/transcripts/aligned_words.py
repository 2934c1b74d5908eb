"""Words and tokens of an alignment: which labels make a word, when it is said, how sure the model is of it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from asr_jax.core.frame_times import FrameTimes
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.transcript import Token, Transcript, Word


class WordLabels(NamedTuple):
    """A word's labels, by place in their sequence: those with text."""

    text: str
    first: int
    end: int


def word_labels(labels: Sequence[int], spelling: Spelling) -> list[WordLabels]:
    """The words that labels spell; a label that is a border alone is of no word."""
    words: list[WordLabels] = []
    is_open = False
    for place, label in enumerate(labels):
        text = spelling.texts[label]
        if spelling.opens[label] or not is_open:
            is_open = bool(text)
            words += [WordLabels(text, place, place + 1)] if is_open else []
        elif text:
            words[-1] = WordLabels(words[-1].text + text, words[-1].first, place + 1)
    return words


def aligned_words(
    labels: Sequence[int],
    starts: Int[np.ndarray, " U"],
    ends: Int[np.ndarray, " U"],
    log_probs: Float[np.ndarray, " U"],
    *,
    score: float,
    spelling: Spelling,
    times: FrameTimes,
) -> Transcript:
    """The words of one row of an `Alignment`. A word's confidence: the geometric mean of its labels' probabilities."""
    words = tuple(
        Word(
            text,
            times.seconds(int(starts[first])),
            times.seconds(int(ends[end - 1])),
            math.exp(min(float(log_probs[first:end].mean()), 0.0)),
        )
        for text, first, end in word_labels(labels, spelling)
    )
    return Transcript(words, score)


def aligned_tokens(
    labels: Sequence[int],
    starts: Int[np.ndarray, " U"],
    ends: Int[np.ndarray, " U"],
    log_probs: Float[np.ndarray, " U"],
    *,
    spelling: Spelling,
    times: FrameTimes,
) -> tuple[Token, ...]:
    """Of the same, every label."""
    rows: Any = zip(labels, starts.tolist(), ends.tolist(), log_probs.tolist(), strict=True)
    return tuple(
        Token(spelling.symbols[label], times.seconds(start), times.seconds(end), log_prob)
        for label, start, end, log_prob in rows
    )
