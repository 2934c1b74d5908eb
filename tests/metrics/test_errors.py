"""Error counts against edit distances by dynamic programming, and what empty texts, sources and sums give."""

import math
import random
import time

import pytest

from asr_jax.metrics.errors import ErrorCounts, character_errors, score, word_errors


def distance(a, b):
    """The fewest edits that make b of a."""
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


def test_score_sums_a_set_and_its_sources():
    found = score(["a b", "c d", "e"], ["a b", "c x y", ""], ["read", "phone", "read"])
    by_source = found.pop("by_source")
    assert list(by_source) == ["phone", "read"]
    names = ("wer", "cer", "substitutions", "deletions", "insertions", "words", "utterances")
    assert by_source["read"] == dict(zip(names, (1 / 3, 1 / 4, 0, 1, 0, 3, 2), strict=True))
    assert by_source["phone"] == dict(zip(names, (1.0, 1.0, 1, 0, 1, 2, 1), strict=True))
    assert found == dict(zip(names, (3 / 5, 4 / 7, 1, 1, 1, 5, 3), strict=True))


def test_score_without_words_has_no_rate():
    assert score([], []) == {
        "wer": None, "cer": None, "substitutions": 0, "deletions": 0, "insertions": 0, "words": 0, "utterances": 0,
        "by_source": {},
    }  # fmt: skip
    noise = score(["", "a"], ["x y", "a"], ["noise", "read"])
    assert noise["wer"] == 2.0
    assert noise["by_source"]["noise"]["wer"] is None
    assert noise["by_source"]["noise"]["insertions"] == 2


def test_score_wants_as_many_hypotheses_as_references():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        score(["a", "b"], ["a"])


def test_a_test_set_is_scored_in_milliseconds():
    choose = random.Random(0)
    vocabulary = [f"w{i}" for i in range(8000)]
    references = [choose.choices(vocabulary, k=choose.randint(5, 35)) for _ in range(2620)]
    hypotheses = [[choose.choice(vocabulary) if choose.random() < 0.05 else w for w in row] for row in references]
    texts = [[" ".join(row) for row in rows] for rows in (references, hypotheses)]
    took = []
    for _ in range(3):
        start = time.perf_counter()
        score(*texts)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.2  # 11 ms alone on a core; tests share theirs
