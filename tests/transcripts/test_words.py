"""Words of token sequences, for vocabularies of characters, pieces and words."""

import math

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.transcript import Token
from asr_jax.transcripts.words import Writer
from tests.support import approx

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
    finished, part = spelling.words(labels)
    texts = [*finished, part] if part else finished
    found = [(text, *each) for text, each in zip(texts, spelling.word_ranges(labels), strict=True)]
    assert found == expected


def test_words_and_tokens():
    writer = Writer(CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none"), times=TIMES)
    sequence = TokenSequence((1, 2, 0, 2), (1, 4, 6, 8), (2, 5, 7, 10), (*np.log([0.5, 0.125, 0.9, 1.0]),), -3.0)
    found = writer.transcript([sequence])
    assert found.score == -3.0
    assert [(word.text, word.start_s, word.end_s) for word in found.words] == [("ab", 0.04, 0.2), ("b", 0.32, 0.4)]
    assert [word.confidence for word in found.words] == approx([0.25, 1.0])
    later = writer.transcript([sequence], first_frame=100).words
    assert [word.start_s for word in later] == approx([4.04, 4.32])
    tokens = writer.tokens(sequence)
    assert [token.text for token in tokens] == ["a", "b", "|", "b"]
    assert tokens[2] == Token("|", 0.24, 0.28, math.log(0.9))
