"""Span masks: all distributions of lengths, short rows, padding rows, and independence of the batch."""

from functools import partial

import jax
import numpy as np
import pytest

from asr_jax.nn.wav2vec.span_masks import SpanMask


@partial(jax.jit, static_argnames=("settings", "size"))
def drawn(lengths, *, settings, size):
    return settings(jax.random.key(0), lengths, size)


def masks(settings, lengths, size=100):
    return np.asarray(drawn(np.array(lengths, np.int32), settings=settings, size=size))


def runs(row):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
    return edges[1::2] - edges[::2]


def test_no_probability_masks_nothing():
    assert not masks(SpanMask(probability=0.0), [100, 50]).any()


@pytest.mark.parametrize(
    ("selection", "other", "shortest", "longest"),
    [
        ("static", 0.0, 7, 7),
        pytest.param("uniform", 3.0, 3, 14, marks=pytest.mark.slow),
        pytest.param("normal", 2.0, 1, 17, marks=pytest.mark.slow),
        ("poisson", 0.0, 0, 25),
    ],
)
def test_lengths_of_a_single_span(selection, other, shortest, longest):
    settings = SpanMask(probability=0.0001, length=7, min_spans=1, same_count=False, selection=selection, other=other)
    found = masks(settings, [200] * 600, 200)
    lengths = found.sum(axis=1)
    assert all(len(runs(row)) == (row.any()) for row in found)
    assert shortest <= lengths.min()
    assert lengths.max() <= longest
    if selection != "static":
        expected = {"uniform": 8.5, "normal": 7.0, "poisson": 7.0}[selection]
        assert abs(lengths.mean() - expected) < 4 * lengths.std() / np.sqrt(600)


def test_least_number_of_spans():
    settings = SpanMask(probability=0.01, length=3, min_spans=4, same_count=False)
    counts = masks(settings, [90] * 300).sum(axis=1)
    assert 7 < counts.mean() <= 12
    assert counts.max() == 12


def test_all_rows_have_the_count_of_the_one_with_the_fewest_and_padding_rows_do_not_count():
    found = masks(SpanMask(), [100, 60, 0, 30, 0, 0])
    counts = found.sum(axis=1)
    assert counts[0] == counts[1] == counts[3] > 0
    assert not counts[[2, 4, 5]].any()


def test_short_rows_are_masked_within_themselves():
    lengths = np.repeat(np.array([1, 2, 5, 10, 11], np.int32), 20)
    found = masks(SpanMask(same_count=False), lengths, 20)
    assert not found[np.arange(20) >= lengths[:, None]].any()
    assert found.any(axis=1).all()


def test_a_row_is_masked_alike_in_any_batch():
    settings = SpanMask(same_count=False)
    in_larger = masks(settings, [100, 90, 80, 100, 100, 100])
    np.testing.assert_array_equal(in_larger[:3], masks(settings, [100, 90, 80]))


@pytest.mark.parametrize(
    ("min_space", "lengths"),
    [(7, [120, 31]), *(pytest.param(each, [120, 50], marks=pytest.mark.slow) for each in (0, 1))],
)
def test_spans_that_do_not_overlap_have_space_between_them(min_space, lengths):
    settings = SpanMask(0.8, 9, same_count=False, min_space=min_space)
    found = masks(settings, lengths * 40, 120)
    assert found.any(axis=1).all()
    for row, length in zip(found, lengths * 40, strict=True):
        assert not row[length:].any()
        spans = runs(row)
        assert all(span % 9 == 0 if min_space == 0 else span == 9 for span in spans)
        edges = np.flatnonzero(np.diff(row.astype(int)) == 1)
        ends = np.flatnonzero(np.diff(np.append(row, False).astype(int)) == -1)
        gaps = [start - end for start in edges for end in ends if start >= end]
        assert min(gaps, default=min_space) >= min_space


def test_rows_without_room_for_a_span_are_not_masked():
    found = masks(SpanMask(0.5, 10, min_space=1, same_count=False), [3, 10, 0, 11, 11, 11, 11], 20)
    assert not found[:3].any()
    assert (found[3:].sum(axis=1) == 10).all()


@pytest.mark.parametrize("same_count", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_dropout_unmasks_a_share_of_each_row(same_count):
    """The number is rounded half to even, as by NumPy."""
    lengths = [100, 90, 80, 70, 60, 0]
    whole = masks(SpanMask(same_count=same_count), lengths).sum(axis=1)
    for dropout in (0.1, 0.5, 0.9):
        found = masks(SpanMask(same_count=same_count, dropout=dropout), lengths)
        np.testing.assert_array_equal(found.sum(axis=1), whole - np.rint(whole * dropout).astype(int))
        assert not (found & ~masks(SpanMask(same_count=False), lengths)).any()


@pytest.mark.parametrize(
    "wrong",
    [{"min_space": -1}, {"dropout": 1.0}, {"probability": 1.5}, {"length": 0}, {"min_spans": -1}, {"other": -2.0}],
)
def test_impossible_settings_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        SpanMask(**wrong)
