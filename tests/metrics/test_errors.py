"""Error counts, compared with edit distances by dynamic programming; empty texts and sums."""

import math
import random
import time

import pytest
from rapidfuzz.distance import Levenshtein

from asr_jax.metrics.errors import EDITS, ErrorCounts, count_errors, word_errors
from tests.support import character_errors


def distance(a, b):
    """Edit distance of two sequences."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def test_equals_the_edit_distance_of_random_texts():
    choose = random.Random(0)
    for _ in range(200):
        reference, hypothesis = (
            " ".join(choose.choices(["a", "b", "ab", "née", "你"], k=choose.randint(0, 9))) for _ in range(2)
        )
        for found, a, b in (
            (word_errors(reference, hypothesis), reference.split(), hypothesis.split()),
            (character_errors(reference, hypothesis), reference, hypothesis),
        ):
            assert found.errors == distance(a, b)
            assert found.words == len(a)
            assert found.words - found.deletions + found.insertions == len(b)
            assert found.utterances == 1
            assert min(found.substitutions, found.deletions, found.insertions) >= 0


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b c", "a x c", (1, 0, 0, 3)),
        ("a b c", "a c", (0, 1, 0, 3)),
        ("a c", "a b c", (0, 0, 1, 2)),
        ("a b", "", (0, 2, 0, 2)),
        ("", "a b", (0, 0, 2, 0)),
        ("", "", (0, 0, 0, 0)),
        (" a  b ", "a b", (0, 0, 0, 2)),
    ],
)
def test_kinds_of_edits(reference, hypothesis, expected):
    assert word_errors(reference, hypothesis) == ErrorCounts(*expected, utterances=1)


def test_rates_are_of_sums_not_means_of_rates():
    counts = word_errors("a", "b") + word_errors("a b c", "a b c") + word_errors("", "x")
    assert counts == ErrorCounts(substitutions=1, insertions=1, words=4, utterances=3)
    assert counts.rate == 0.5
    assert word_errors("a", "b c d").rate == 3.0
    assert math.isnan(word_errors("", "x").rate)


def test_other_measures_than_the_error_rate():
    counts = word_errors("a b c d", "b c d e")
    assert (counts.hits, counts.match_error_rate, counts.information_lost) == (3, 2 / 5, 1 - 9 / 16)
    assert [word_errors(*pair).match_error_rate for pair in (("", ""), ("", "x"), ("x", ""))] == [0, 1, 1]
    assert [word_errors(*pair).information_lost for pair in (("", ""), ("", "x"), ("x", ""))] == [0, 1, 1]


def test_many_are_counted_as_each_alone():
    choose = random.Random(1)
    texts = [[" ".join(choose.choices(["a", "b", "ab"], k=choose.randint(0, 6))) for _ in range(300)] for _ in range(2)]
    texts[0] += [" a  b ", ""]
    texts[1] += ["a b", ""]
    found = count_errors(*texts)
    for row, reference, hypothesis in zip(found.tolist(), *texts, strict=True):
        alone = word_errors(reference, hypothesis), character_errors(reference, hypothesis)
        assert row == [n for c in alone for n in (c.substitutions, c.deletions, c.insertions, c.words)]
    assert found.shape == (302, len(EDITS))
    assert count_errors([], []).shape == (0, len(EDITS))


def test_the_split_is_that_of_the_alignment():
    """If the number of edits is ambiguous, the split equals a count of the edits of RapidFuzz's alignment."""
    choose = random.Random(2)
    ambiguous = 0
    for _ in range(500):
        reference, hypothesis = (choose.choices("abcd", k=choose.randint(0, 9)) for _ in range(2))
        tags = [edit.tag for edit in Levenshtein.editops(reference, hypothesis)]
        found = word_errors(" ".join(reference), " ".join(hypothesis))
        expected = tuple(tags.count(tag) for tag in ("replace", "delete", "insert"))
        assert (found.substitutions, found.deletions, found.insertions) == expected
        ambiguous += len(tags) - abs(len(reference) - len(hypothesis)) > 1
    assert ambiguous > 100


def test_as_many_hypotheses_as_references_are_wanted():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        count_errors(["a", "b"], ["a"])


def test_a_test_set_is_counted_in_milliseconds():
    choose = random.Random(0)
    vocabulary = [f"w{i}" for i in range(8000)]
    references = [choose.choices(vocabulary, k=choose.randint(5, 35)) for _ in range(2620)]
    hypotheses = [[choose.choice(vocabulary) if choose.random() < 0.05 else w for w in row] for row in references]
    texts = [[" ".join(row) for row in rows] for rows in (references, hypotheses)]
    took = []
    for _ in range(3):
        start = time.process_time()
        count_errors(*texts)
        took.append(time.process_time() - start)
    assert min(took) < 0.1  # words and characters take 10 ms on an idle core; tests share theirs


@pytest.mark.parametrize("alignment", ["fewest_edits", "sclite"])
def test_words_of_scripts_without_spaces(alignment):
    counts = word_errors("今天天气很好 ok", "今天天汽很好 ok go", alignment)
    assert (counts.substitutions, counts.deletions, counts.insertions, counts.words) == (1, 0, 1, 7)
    assert word_errors("ผมชื่อสมชาย", "ผมชื่อสมหมาย", alignment).words == 3
    many = count_errors(["今天天气很好", "a b"], ["今天天汽很好", "a b"], alignment=alignment)
    assert many[:, :4].tolist() == [[1, 0, 0, 6], [0, 0, 0, 2]]
