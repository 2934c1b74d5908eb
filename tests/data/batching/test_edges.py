"""Edges compared with every possible division, and with the definitions of the methods."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from asr_jax.data.batching.edges import equal_count, equal_duration, least_padding


def padding(lengths: np.ndarray, edges: Sequence[int] | np.ndarray) -> int:
    return int((np.asarray(edges)[np.searchsorted(edges, lengths)] - lengths).sum())


@pytest.mark.parametrize("num", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_least_padding_is_the_least_of_all(num: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).gamma(3, 20, 60).astype(np.int32) // 8 * 8 + 1
    values = np.unique(lengths)
    least = min(padding(lengths, [*rest, values[-1]]) for rest in combinations(values[:-1], num - 1))
    edges = least_padding(lengths, num)
    assert len(edges) == num
    assert (np.diff(edges) > 0).all()
    assert padding(lengths, edges) == least


@pytest.mark.parametrize("edges_of", [least_padding, equal_count, equal_duration])
def test_fewer_lengths_than_buckets_need_no_padding(edges_of) -> None:
    assert edges_of(np.array([5, 9, 5, 7]), 8).tolist() == [5, 7, 9]
    assert edges_of(np.array([4]), 3).tolist() == [4]


def test_many_lengths_are_binned_and_still_near_the_best() -> None:
    lengths = np.random.default_rng(0).integers(1000, 500_000, 20_000)
    edges = least_padding(lengths, 4)
    assert edges[-1] == lengths.max()
    assert np.isin(edges, lengths).all()
    # For evenly spread lengths, four equal ranges are optimal.
    assert padding(lengths, edges) <= 1.002 * padding(lengths, np.linspace(1000, 500_000, 5)[1:])


def test_lengths_of_hours_are_binned_without_overflow() -> None:
    lengths = np.random.default_rng(0).integers(1000, 1_380_000_000, 5000).astype(np.int32)
    edges = least_padding(lengths, 4)
    assert edges[-1] == lengths.max()
    assert padding(lengths.astype(np.int64), edges) <= 1.01 * padding(lengths, np.linspace(1000, 1_380_000_000, 5)[1:])


@pytest.mark.parametrize("num", [1, 2, 7])
def test_equal_count_and_duration_are_equal_to_one_entry(num: int) -> None:
    lengths = np.random.default_rng(1).permutation(np.arange(100, 1100))
    for edges, amounts in ((equal_count(lengths, num), np.ones(1000)), (equal_duration(lengths, num), lengths)):
        assert len(edges) == num
        assert edges[-1] == lengths.max()
        held = np.bincount(np.searchsorted(edges, lengths), amounts)
        assert np.ptp(held) <= 2 * amounts.max()


def test_equal_duration_has_fewer_of_the_long_ones() -> None:
    lengths = np.concatenate([np.full(60, 10), np.full(30, 20), np.full(20, 30)])
    assert equal_duration(lengths, 3).tolist() == [10, 20, 30]
    assert equal_count(lengths, 2).tolist() == [10, 30]


def test_equal_lengths_stay_together() -> None:
    lengths = np.concatenate([np.full(90, 7), np.array([8, 9])])
    assert equal_count(lengths, 3).tolist() == [7, 9]
    assert equal_duration(lengths, 3).tolist() == [7, 9]
