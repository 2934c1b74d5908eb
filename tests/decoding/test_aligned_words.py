"""Words of aligned labels, for vocabularies of characters, pieces and words; and how they are written."""

import math

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from asr_jax.decoding.aligned_words import Token, aligned_tokens, aligned_words, word_labels
from asr_jax.decoding.alignment_files import as_ctm, as_json, as_textgrid
from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.transcript import Transcript, Word

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


def test_files():
    transcript = Transcript((Word('say"', 0.5, 0.75, 0.9), Word("so", 1.0, 1.25, 1.0)), -1.5)
    assert as_ctm("a b", transcript.words) == 'a_b 1 0.500 0.250 say" 0.9000\na_b 1 1.000 0.250 so 1.0000\n'
    assert as_json("a", transcript) == {
        "id": "a",
        "text": 'say" so',
        "score": -1.5,
        "confidence": 0.95,
        "words": [
            {"text": 'say"', "start_s": 0.5, "end_s": 0.75, "confidence": 0.9},
            {"text": "so", "start_s": 1.0, "end_s": 1.25, "confidence": 1.0},
        ],
    }
    tokens = [Token("s", 1.0, 1.1, -0.5)]
    assert as_json("a", transcript, tokens)["tokens"] == [{"text": "s", "start_s": 1.0, "end_s": 1.1, "log_prob": -0.5}]
    grid = as_textgrid(transcript, tokens, duration_s=2.0)
    lines = [line.strip() for line in grid.splitlines()]
    assert lines[:2] == ['File type = "ooTextFile"', 'Object class = "TextGrid"']
    assert [line for line in lines if line.startswith("text")][:5] == [
        'text = ""', 'text = "say"""', 'text = ""', 'text = "so"', 'text = ""',
    ]  # fmt: skip
    assert lines.count("xmax = 2.0000") == 5  # the file's, each tier's and each one's last interval
    assert "size = 2" in lines
