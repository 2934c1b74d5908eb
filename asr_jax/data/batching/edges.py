"""Edges of buckets: methods that divide entries by length."""

import numpy as np
from jaxtyping import Float, Int, Int64

MAX_BINS = 2048
MOST_COUNTED = 1 << 24
"""Lengths below it are counted in an array. It is 17 minutes at 16 kHz."""


EntryWeights = Float[np.ndarray, " E"] | None
"""Weight of each entry: the mean number of times that an epoch contains it. None: equal weights."""


def least_padding(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """Edges that minimise the padding Σ weight · (edge - length).

    Dynamic programming over the histogram of lengths: f_k(j) = min_i f_{k-1}(i) + (count_j - count_i) · edge_j, where
    count_j is the weight of the entries in the first j bins. The cost is O(K n²) for n bins. The result is exact for at
    most 2048 distinct lengths. Otherwise, lengths are rounded up to the longest in their bin of 1/2048 of the range.

    Args:
        lengths: Length of each entry [E].
        num: Maximum number of edges.
        weights: Weight of each entry [E]. None: equal weights.

    Returns:
        K ≤ `num` edges in ascending order, each the length of an entry.
    """
    ends, counts = _histogram(np.asarray(lengths), weights)
    count = np.concatenate([[0], np.cumsum(counts)])
    # Row j, column i: the bucket has bins i … j. Rows are contiguous, and the minimum of a row is found fast.
    cost = (count[1:, None] - count[None, :-1]) * ends[:, None].astype(np.float64)
    cost[np.triu_indices(len(ends), 1)] = np.inf
    best, choices, total = cost[:, 0], [], np.empty_like(cost[:, 1:])
    for _ in range(1, min(num, len(ends))):
        # Row j: the last bucket starts at bin i ≥ 1 and the others end at bin i - 1.
        np.add(best[:-1], cost[:, 1:], out=total)
        choices.append(total.argmin(axis=1) + 1)
        best = np.take_along_axis(total, choices[-1][:, None] - 1, axis=1)[:, 0]
    return _trace(ends, choices)


def equal_count(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """Edges, as of `least_padding`, that divide the entries into buckets of equal weight."""
    return _equal(*_counts(lengths, weights), num)


def equal_duration(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """Edges, as of `least_padding`, that divide the entries into buckets of equal amounts of audio."""
    ends, counts = _counts(lengths, weights)
    return _equal(ends, counts * ends.astype(np.float64), num)


def _equal(ends: Int[np.ndarray, " N"], amounts: Float[np.ndarray, " N"], num: int) -> Int64[np.ndarray, " K"]:
    """Lengths at which the cumulative amount reaches k/num of the total, k = 1 … num. Equal lengths stay together."""
    reached = np.cumsum(amounts)
    places = np.searchsorted(reached, reached[-1] * np.arange(1, num) / num)
    return np.unique(ends[[*places, len(ends) - 1]]).astype(np.int64)


def _counts(lengths: np.ndarray, weights: EntryWeights) -> tuple[np.ndarray, Float[np.ndarray, " N"]]:
    """Distinct lengths in ascending order, and the weight of the entries of each length."""
    if len(lengths) and lengths.min() >= 0 and lengths.max() < MOST_COUNTED:  # counting is ten times as fast as sorting
        numbers = np.bincount(lengths)
        ends = np.flatnonzero(numbers).astype(lengths.dtype)
        return ends, (numbers if weights is None else np.bincount(lengths, weights))[ends].astype(np.float64)
    ends, place_of, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    return ends, counts.astype(np.float64) if weights is None else np.bincount(place_of, weights)


def _histogram(lengths: np.ndarray, weights: EntryWeights) -> tuple[np.ndarray, np.ndarray]:
    """Largest length and weight of each bin; at most MAX_BINS bins, none empty."""
    ends, counts = _counts(lengths, weights)
    if len(ends) <= MAX_BINS:
        return ends.astype(np.int64), counts
    bin_of = (ends.astype(np.int64) - ends[0]) * MAX_BINS // (int(ends[-1]) - int(ends[0]) + 1)
    last = np.flatnonzero(np.diff(bin_of, append=MAX_BINS))
    return ends[last].astype(np.int64), np.diff(np.cumsum(counts)[last], prepend=0)


def _trace(ends: np.ndarray, choices: list[np.ndarray]) -> np.ndarray:
    """Edges of the best division, traced back from the last bucket to the first."""
    edges = [len(ends) - 1]
    for starts in reversed(choices):
        start = int(starts[edges[-1]])
        edges.append(start - 1)
    return ends[edges[::-1]]
