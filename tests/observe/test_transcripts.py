"""Aligned references and hypotheses."""

import random

import pytest
from rapidfuzz.distance import Levenshtein

from asr_jax.observe.transcripts import align, aligned_lines


def test_marks_are_the_errors_and_words_are_all_there():
    random.seed(0)
    for _ in range(200):
        reference = random.choices("abcd", k=random.randrange(8))
        hypothesis = random.choices("abcd", k=random.randrange(8))
        pairs = align(" ".join(reference), " ".join(hypothesis))
        assert [pair.reference for pair in pairs if pair.reference] == reference
        assert [pair.hypothesis for pair in pairs if pair.hypothesis] == hypothesis
        assert sum(pair.mark != "" for pair in pairs) == Levenshtein.distance(reference, hypothesis)
        for pair in pairs:
            missing = {(True, False): "D", (False, True): "I"}.get((bool(pair.reference), bool(pair.hypothesis)))
            assert pair.mark == (missing or ("" if pair.reference == pair.hypothesis else "S"))


def test_words_stand_under_words():
    assert aligned_lines("please go to room two today", "please go room too today now") == [
        "ref  please go to room two today ***",
        "hyp  please go ** room too today now",
        "               D       S         I",
    ]


def test_wide_characters_take_two_cells():
    assert aligned_lines("試験 x", "a x") == ["ref  試 験 x", "hyp  a  ** x", "     S  D"]


def test_long_utterances_go_on_in_groups_of_lines():
    words = [f"w{number:02d}" for number in range(20)]
    lines = aligned_lines(" ".join(words), " ".join(words), width=24)
    assert all(len(line) <= 24 for line in lines)
    assert " ".join(line[5:] for line in lines if line.startswith("ref")).split() == words
    assert lines[0::2] == [line.replace("hyp", "ref") for line in lines[1::2]]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "lines"),
    [("", "", ["ref", "hyp"]), ("a", "", ["ref  a", "hyp  *", "     D"]), ("same", "same", ["ref  same", "hyp  same"])],
)
def test_short_ones(reference, hypothesis, lines):
    assert aligned_lines(reference, hypothesis) == lines


def test_a_word_wider_than_the_line_stands_alone_and_is_cut():
    assert aligned_lines("a " + "x" * 50, "a " + "x" * 5000, width=30)[-3:] == [
        "ref  " + "x" * 15 + "…(+35)",
        "hyp  " + "x" * 15 + "…(+4,985)",
        "     S",
    ]
