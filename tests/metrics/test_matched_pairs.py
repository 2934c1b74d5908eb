"""The matched pairs test: NIST's published example, segments found in another way, and the p-value."""

import itertools
import random
import re

import numpy as np
import pytest
from scipy.stats import norm, ttest_1samp

from asr_jax.metrics.matched_pairs import MatchedPairs, matched_pairs, segment_differences
from tests.support import approx, assert_within


def test_segments_of_nists_example():
    """Example of the documentation of NIST's sc_stats: four segments, separated by two words that both recognise."""
    reference = "it was the best of times it was the worst of times it was"
    first = "its the best of times it is the worst of times or it was"
    second = "it was the best times it won the test of times it was"
    found = segment_differences([reference], first=[first], second=[second])
    assert found.tolist() == [0 - 2, 1 - 0, 2 - 1, 0 - 1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b c d e f", "a b c d e f", []),
        ("x b c d e f", "a b c d e x", [-1, 1]),
        ("x b d e f", "x b d e f", [0]),
        ("x b x d e f", "a b c d e f", [-2]),  # one word between is too few
        ("a b y c d e f", "a b c z d e f", [0]),
        ("a b y c d e f", "a b c d z e f", [-1, 1]),
        ("a b c d e f y", "a b c d e f", [-1]),
        ("", "a b c d e f", [-6]),
    ],
)
def test_small_segments(first, second, expected):
    assert segment_differences(["a b c d e f"], first=[first], second=[second]).tolist() == expected


def test_no_segment_reaches_into_another_utterance():
    found = segment_differences(["a", "a", ""], first=["b", "a", "x"], second=["a", "b", ""])
    assert found.tolist() == [-1, 1, -1]


def noisy(choose, num_words):
    """A hypothesis of words 0, 1, …, and the errors at each position: before a word, at it, …, at the end."""
    text, errors = [], [0] * (2 * num_words + 1)
    insertions = itertools.count(1000)
    deletes = choose.random() < 0.5  # a deletion beside an insertion would be a substitution
    for place in range(2 * num_words + 1):
        word = place // 2
        if place % 2 == 0 and (deletes or choose.random() > 0.06):
            continue
        if place % 2 and choose.random() > 0.15:
            text.append(str(word))
            continue
        errors[place] = 1
        if not (place % 2 and deletes):
            text.append(str(next(insertions)))
    return " ".join(text), errors


def utterances(seed, num=300):
    choose = random.Random(seed)
    references, texts, errors = [], ([], []), ([], [])
    for _ in range(num):
        num_words = choose.randint(0, 25)
        references.append(" ".join(map(str, range(num_words))))
        for system in range(2):
            text, wrong = noisy(choose, num_words)
            texts[system].append(text)
            errors[system].append(wrong)
    return references, texts, errors


def test_segments_equal_those_that_a_pattern_finds():
    """Each position becomes a letter, and a regular expression finds the segments that the code finds by arithmetic."""
    references, (first, second), errors = utterances(0)
    expected = []
    for of_first, of_second in zip(*errors, strict=True):
        apart = np.subtract(of_second, of_first)
        letters = "".join(
            "x" if a or b else ".c"[n % 2] for n, (a, b) in enumerate(zip(of_first, of_second, strict=True))
        )
        segments = re.finditer(r"x(?:\.?c?\.?(?=x)x)*", letters)
        expected += [apart[segment.start() : segment.end()].sum() for segment in segments]
    assert len(expected) > 500
    assert segment_differences(references, first=first, second=second).tolist() == expected


def test_the_p_value_is_that_of_the_normal_distribution():
    references, (first, second), _ = utterances(1)
    found = matched_pairs(references, first=first, second=second)
    differences = segment_differences(references, first=first, second=second)
    assert found.segments == len(differences)
    assert found.mean_difference == approx(differences.mean())
    assert found.z == approx(ttest_1samp(differences, 0.0).statistic)
    assert found.p_value == approx(2 * norm.sf(abs(found.z)))
    swapped = matched_pairs(references, first=second, second=first)
    assert (swapped.z, swapped.p_value) == (approx(-found.z), found.p_value)


def test_equal_systems_are_called_different_as_often_as_the_level_says():
    found = [matched_pairs(r, first=a, second=b).p_value for r, (a, b), _ in (utterances(s, 60) for s in range(300))]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.09
    assert 0.4 <= np.mean(np.array(found) < 0.5) <= 0.6


def test_a_worse_system_is_found():
    references, (first, _), _ = utterances(2)
    worse = [" ".join(text.split()[:-1]) for text in first]
    found = matched_pairs(references, first=first, second=worse)
    assert found.z > 5
    assert_within(found.p_value, 1e-6)


def test_too_few_segments_have_no_p_value():
    assert matched_pairs(["a b"], first=["a b"], second=["a b"]) == MatchedPairs(0, None, None, 1.0)
    assert matched_pairs(["a b"], first=["a x"], second=["x b"]) == MatchedPairs(1, 0.0, None, 1.0)
    assert matched_pairs(["a b"], first=["a b"], second=["x b"]) == MatchedPairs(1, 1.0, None, None)
    with pytest.raises(ValueError, match="shorter"):
        matched_pairs(["a", "b"], first=["a"], second=["a", "b"])
