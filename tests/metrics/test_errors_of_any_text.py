"""Counts of edits of any Unicode texts, against jiwer, and against sclite's rule computed cell by cell."""

import pytest

from asr_jax.metrics.errors import count_errors, word_errors
from asr_jax.text.segmentation import words_of
from tests.support import approx

pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[dev]'")
jiwer = pytest.importorskip("jiwer", reason="needs jiwer: pip install -e '.[dev]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.slow

MANY = settings(max_examples=400, deadline=None)
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
WORD = st.sampled_from(["a", "b", "née", "ne\u0301e", "你", "می\u200cخ", "👩\u200d🚀", "A"])
BETWEEN = st.sampled_from([" ", "  ", "\t", "\u00a0", "\u3000", "\u2028", "\x85"])
OF_WORDS = st.lists(st.tuples(WORD, BETWEEN), max_size=12).map(lambda pairs: "".join(map("".join, pairs)))
TEXT = ANY | OF_WORDS


@MANY
@given(TEXT, TEXT)
def test_words_are_counted_as_jiwer_counts_them(reference, hypothesis):
    found = word_errors(reference, hypothesis)
    expected = jiwer.process_words(" ".join(words_of(reference)), " ".join(words_of(hypothesis)))
    counts = (expected.substitutions, expected.deletions, expected.insertions, expected.hits)
    assert (found.substitutions, found.deletions, found.insertions, found.hits) == counts
    assert found.words == len(words_of(reference))
    if found.words:
        assert found.rate == approx(expected.wer)
        assert found.match_error_rate == approx(expected.mer)
        assert found.information_lost == approx(expected.wil)


@MANY
@given(TEXT, TEXT)
def test_characters_are_counted_as_jiwer_counts_them(reference, hypothesis):
    *found, number = count_errors([reference], [hypothesis])[0, 4:].tolist()
    expected = jiwer.process_characters(reference, hypothesis)
    assert found == [expected.substitutions, expected.deletions, expected.insertions]
    assert number == expected.substitutions + expected.deletions + expected.hits


def sclite(reference: list[str], hypothesis: list[str]) -> tuple[int, int, int]:
    """Substitutions, deletions and insertions by sclite's costs, and by its order of equal costs, from the end."""
    costs = [[3 * (row + column) for column in range(len(hypothesis) + 1)] for row in range(len(reference) + 1)]

    def steps(row, column):
        differ = reference[row - 1] != hypothesis[column - 1]
        yield costs[row - 1][column - 1] + 4 * differ, (1, 1), (int(differ), 0, 0)
        yield costs[row][column - 1] + 3, (0, 1), (0, 0, 1)
        yield costs[row - 1][column] + 3, (1, 0), (0, 1, 0)

    for row in range(1, len(reference) + 1):
        for column in range(1, len(hypothesis) + 1):
            costs[row][column] = min(cost for cost, _, _ in steps(row, column))
    row, column, edits = len(reference), len(hypothesis), (0, 0, 0)
    while row and column:
        _, (up, left), edit = min(steps(row, column), key=lambda step: step[0])  # the first of equal costs
        row, column, edits = row - up, column - left, tuple(map(sum, zip(edits, edit, strict=True)))
    return edits[0], edits[1] + row, edits[2] + column


@MANY
@given(TEXT, TEXT)
def test_words_are_counted_by_sclites_rule(reference, hypothesis):
    found = word_errors(reference, hypothesis, alignment="sclite")
    counts = sclite(words_of(reference), words_of(hypothesis))
    assert (found.substitutions, found.deletions, found.insertions) == counts
    assert found.errors >= word_errors(reference, hypothesis).errors


@MANY
@given(st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_sums_of_a_set_are_those_of_its_texts(pairs):
    references, hypotheses = ([pair[place] for pair in pairs] for place in (0, 1))
    alone = [count_errors([reference], [hypothesis])[0] for reference, hypothesis in pairs]
    assert count_errors(references, hypotheses).tolist() == [row.tolist() for row in alone]
