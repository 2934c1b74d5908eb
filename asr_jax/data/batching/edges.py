"""Edges: where one bucket ends and the next begins, by the lengths of the entries that the buckets divide."""

import numpy as np
from jaxtyping import Float, Int, Int64

MAX_BINS = 2048


EntryWeights = Float[np.ndarray, " E"] | None
"""How much each entry counts: how often it comes, in the mean of all epochs. None: all alike."""


def least_padding(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """The K ≤ `num` rising edges, each the length of an entry, for which Σ weight · (edge - length) is least.

    Dynamic programming over the histogram of lengths: f_k(j) = min_i f_{k-1}(i) + (count_j - count_i) · edge_j, where
    count_j is the weight of the entries in the first j bins. O(K n²) for n bins; exact where there are at most 2048
    different lengths, else for lengths rounded up to the longest of their bin of 1/2048 of the range.
    """
    ends, counts = _histogram(np.asarray(lengths), weights)
    count = np.concatenate([[0], np.cumsum(counts)])
    cost = (count[None, 1:] - count[:-1, None]) * ends[None, :].astype(np.float64)
    cost[np.tril_indices(len(ends), -1)] = np.inf
    best, choices = cost[0], []
    for _ in range(1, min(num, len(ends))):
        # Column j: the last bucket starts at bin i ≥ 1 and the others end at bin i - 1.
        total = best[:-1, None] + cost[1:]
        choices.append(total.argmin(axis=0) + 1)
        best = total.min(axis=0)
    return _trace(ends, choices)


def equal_count(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """The K ≤ `num` rising edges between which lie as many entries each; equal lengths stay together."""
    ends, counts = _counts(lengths, weights)
    return _equal(ends, counts, num)


def equal_duration(lengths: Int[np.ndarray, " E"], num: int, weights: EntryWeights = None) -> Int64[np.ndarray, " K"]:
    """The K ≤ `num` rising edges between which lies as much audio each; equal lengths stay together."""
    ends, counts = _counts(lengths, weights)
    return _equal(ends, counts * ends.astype(np.float64), num)


def _equal(ends: Int[np.ndarray, " N"], amounts: Float[np.ndarray, " N"], num: int) -> Int64[np.ndarray, " K"]:
    """The lengths at which k/num of the amount of all is reached, k = 1 … num."""
    reached = np.cumsum(amounts)
    places = np.searchsorted(reached, reached[-1] * np.arange(1, num) / num)
    return np.unique(ends[[*places, len(ends) - 1]]).astype(np.int64)


def _counts(lengths: np.ndarray, weights: EntryWeights) -> tuple[np.ndarray, Float[np.ndarray, " N"]]:
    """The different lengths, rising, and the weight of the entries that have each."""
    ends, place_of, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    return ends, counts.astype(np.float64) if weights is None else np.bincount(place_of, weights)


def _histogram(lengths: np.ndarray, weights: EntryWeights) -> tuple[np.ndarray, np.ndarray]:
    """The largest length and the weight of each of at most MAX_BINS bins, none empty."""
    ends, counts = _counts(lengths, weights)
    if len(ends) <= MAX_BINS:
        return ends.astype(np.int64), counts
    bin_of = (ends.astype(np.int64) - ends[0]) * MAX_BINS // (int(ends[-1]) - int(ends[0]) + 1)
    last = np.flatnonzero(np.diff(bin_of, append=MAX_BINS))
    return ends[last].astype(np.int64), np.diff(np.cumsum(counts)[last], prepend=0)


def _trace(ends: np.ndarray, choices: list[np.ndarray]) -> np.ndarray:
    """The edges of the best division, from the last bucket back to the first."""
    edges = [len(ends) - 1]
    for starts in reversed(choices):
        start = int(starts[edges[-1]])
        edges.append(start - 1)
    return ends[edges[::-1]]
