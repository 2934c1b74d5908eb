"""Words of aligned labels, for vocabularies of characters, pieces and words."""

import math

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.aligned_words import aligned_tokens, aligned_words, word_labels
from asr_jax.transcripts.transcript import Token

CHARACTERS = Spelling.of_surfaces([" ", "a", "b", ""], blank_id=3)
PIECES = Spelling.of_surfaces([" the", "re", " ", "a", ""], blank_id=4)
WORDS = Spelling.of_surfaces([" one", " two", ""], blank_id=2)
TIMES = FrameTimes(shift=640, first=0.0, rate_hz=16000)


@pytest.mark.parametrize(
    ("spelling", "labels", "expected"),
    [
        (CHARACTERS, [1, 2, 0, 2, 0, 0, 1], [("ab", 0, 2), ("b", 3, 4), ("a", 6, 7)]),
        (CHARACTERS, [0, 1, 0], [("a", 1, 2)]),
        (PIECES, [0, 1, 2, 3, 1, 0], [("there", 0, 2), ("are", 3, 5), ("the", 5, 6)]),
        (PIECES, [1, 0], [("re", 0, 1), ("the", 1, 2)]),
        (WORDS, [0, 1, 1], [("one", 0, 1), ("two", 1, 2), ("two", 2, 3)]),
        (WORDS, [], []),
    ],
)
def test_which_labels_make_a_word(spelling, labels, expected):
    assert [tuple(word) for word in word_labels(labels, spelling)] == expected


def test_words_and_tokens():
    labels = [1, 2, 0, 2]
    row = (labels, np.array([1, 4, 6, 8]), np.array([2, 5, 7, 10]), np.log([0.5, 0.125, 0.9, 1.0]))
    found = aligned_words(*row, score=-3.0, spelling=CHARACTERS, times=TIMES)
    assert found.score == -3.0
    assert [(word.text, word.start_s, word.end_s) for word in found.words] == [("ab", 0.04, 0.2), ("b", 0.32, 0.4)]
    assert [word.confidence for word in found.words] == pytest.approx([0.25, 1.0])
    tokens = aligned_tokens(*row, spelling=CHARACTERS, times=TIMES)
    assert [token.text for token in tokens] == ["a", "b", "|", "b"]
    assert tokens[2] == Token("|", 0.24, 0.28, math.log(0.9))
