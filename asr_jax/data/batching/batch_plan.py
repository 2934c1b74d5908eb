"""Batch plan: utterances and speeds of every batch, as a pure function of index, buckets, seed and epoch."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int32

from asr_jax.core.layout import Layout
from asr_jax.data.batching.buckets import Buckets, Entries, assign, first_fit, largest_first, room_of, round_up
from asr_jax.data.batching.mixing import Sources, Stratum, num_drawn, strata
from asr_jax.data.batching.pools import Pool, largest
from asr_jax.data.manifests.arrays import digest_of_values

_MEMBERS, _ENTRIES, _BATCHES, _SPEEDS, _PLACES, _POOLS = 1, 2, 3, 4, 5, 6  # ids of the random streams


@dataclass(frozen=True)
class PlannedBatch:
    """Rows and speeds of one batch, before audio is opened."""

    epoch: int
    bucket: int
    """Index into `BatchPlan.buckets`."""
    rows: Int32[np.ndarray, " B"]
    """Rows of the index; -1 for padding rows."""
    speeds: Float64[np.ndarray, " B"]
    """Playback speed of each row; 1.1 is faster and shorter."""
    places: Float64[np.ndarray, " B"]
    """Place of each row's crop in its stretch, from 0 for its beginning to 1 for its end."""


@dataclass(frozen=True)
class _Epoch:
    order: np.ndarray
    """Batch numbers in the order of the epoch; batches are numbered bucket by bucket."""
    entries: np.ndarray
    """Entries of all batches, bucket by bucket; -1 for padding rows."""
    bucket_of: np.ndarray
    """Index into `BatchPlan.buckets` of each batch, by its number."""


class BatchPlan:
    """Global batches by position: `plan[position]` is batch `position % batches_per_epoch` of its epoch.

    An epoch contains every entry (utterance at a speed) once. An entry belongs to the same bucket in every epoch; with
    jitter, it is the first bucket that the entry fits at its slowest speed. The last batch of a bucket is filled with
    padding rows.

    With `sources`, an epoch contains only a share of the entries of each source. The number of entries of each bucket
    and source is the same in every epoch, and at least one if there are any. All of them are used before any is
    repeated.

    The place of a crop depends on seed, epoch and entry alone, not on the other rows of its batch.

    With a pool, the batches of its epochs have entries of any length, and each has the first bucket that all of its
    entries fit. Figures by bucket then count the first epoch, if all epochs are composed in this way.

    Args:
        buckets: Batch shapes. Every entry must fit one of them.
        seed: Seed of the order and of the jitter.
        is_shuffled: Whether entries within their bucket, then batches, are permuted by (seed, epoch). Otherwise they go
            bucket by bucket, in ascending order of rows, for evaluation.
        sort_window: Number of utterances, in manifest order, within which an epoch goes from longest to shortest,
            instead of shuffled. 0: not sorted.
        sources: Share of each source that an epoch contains. None: everything.
        pessimistic_first: Whether the first batch of all has the largest shape and its longest entries.
    """

    def __init__(
        self,
        entries: Entries,
        buckets: Buckets,
        *,
        seed: int = 0,
        is_shuffled: bool = True,
        sort_window: int = 0,
        sources: Sources | None = None,
        pessimistic_first: bool = False,
    ) -> None:
        self.buckets, self._pool = buckets.shapes, buckets.pool
        self.seed, self.speeds, self.jitter = seed, entries.speeds, entries.jitter
        self.num_utterances, self._is_cropped = len(entries.lengths), entries.is_cropped
        self._is_shuffled, self._sort_window = is_shuffled and not sort_window, sort_window
        self._is_pooled = self._pool is not None and math.isinf(self._pool.until)
        self._pessimistic_first = pessimistic_first
        lengths, labels = entries.played(), entries.labels()
        longest = entries.longest() if self.jitter else lengths
        shares = np.ones(1) if sources is None else sources.shares
        source_of = np.zeros(len(lengths), np.int32)
        if sources is not None:
            source_of = np.tile(sources.of_utterance, len(self.speeds))
        settings = (
            self.buckets,
            self._pool,
            self.speeds,
            self.jitter,
            seed,
            is_shuffled,
            sort_window,
            pessimistic_first,
        )
        crops = np.zeros(0, bool) if entries.is_cropped is None else entries.is_cropped
        self._fingerprint = digest_of_values(settings, lengths, labels, source_of, shares, crops)[:16]
        bucket_of = assign(longest, labels, self.buckets)
        # In sorted order, an entry is numbered by its position in this array.
        self._in_order = self._by_length(lengths) if sort_window else None
        if self._in_order is not None:
            lengths, bucket_of, source_of = (of[self._in_order] for of in (lengths, bucket_of, source_of))
        keeps = self._pool is not None or pessimistic_first  # other plans do not need them, and are smaller without
        self._lengths, self._longest, self._labels = (of if keeps else of[:0] for of in (lengths, longest, labels))
        sizes = np.array([bucket.batch_size for bucket in self.buckets])
        if self._is_pooled:  # all entries are one group
            bucket_of, sizes = np.zeros_like(bucket_of), sizes[:1]
        num = np.bincount(bucket_of * len(shares) + source_of, minlength=len(sizes) * len(shares))
        drawn = num_drawn(num.reshape(len(sizes), -1), shares)
        members = (np.flatnonzero(bucket_of == k).astype(np.int32) for k in range(len(sizes)))
        self._strata = [
            strata(of_bucket, source_of[of_bucket], drawn[k], self._rng(_MEMBERS, k))
            for k, of_bucket in enumerate(members)
        ]
        batches = -(-drawn.sum(axis=1) // sizes)
        if self._is_pooled and self._pool is not None:
            batches = np.array([self._pool.num_batches(longest[: drawn.sum()])])
        self._bucket_of_batch = np.repeat(np.arange(len(sizes)), batches)
        self._starts = np.concatenate([[0], np.cumsum(np.repeat(sizes, batches))])
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()
        if self._is_pooled:
            self._bucket_of_batch = self._epoch(0).bucket_of
        self.length_by_bucket = self._mean_lengths(lengths)
        """Total length of an epoch without padding, by bucket, in samples or frames. With mixing, the mean over all
        epochs."""

    @property
    def batches_per_epoch(self) -> int:
        return len(self._bucket_of_batch)

    @property
    def entries_per_epoch(self) -> int:
        return sum(stratum.num_drawn for parts in self._strata for stratum in parts)

    @property
    def length_per_epoch(self) -> int:
        """Total length of an epoch without padding, in samples or frames. With mixing, the mean over all epochs."""
        return round(float(self.length_by_bucket.sum()))

    @property
    def padding_share(self) -> float:
        """Share of padding in the total length of all batches, 0 to 1."""
        return 1 - float(self.length_by_bucket.sum()) / float(self.padded_by_bucket().sum())

    def padded_by_bucket(self) -> Int[np.ndarray, " K"]:
        """Total length of an epoch with padding, by bucket, in samples or frames."""
        return self.batches_by_bucket() * np.array([bucket.length * bucket.batch_size for bucket in self.buckets])

    def batches_by_bucket(self) -> Int[np.ndarray, " K"]:
        """Number of batches per epoch, by bucket."""
        return np.bincount(self._bucket_of_batch, minlength=len(self.buckets))

    def entries_by_bucket(self) -> list[int]:
        """Number of entries per epoch, by bucket."""
        if not self._is_pooled:
            return [sum(stratum.num_drawn for stratum in parts) for parts in self._strata]
        filled = np.add.reduceat(self._epoch(0).entries >= 0, self._starts[:-1])
        return np.bincount(self._bucket_of_batch, filled, len(self.buckets)).astype(int).tolist()

    def mean_share(self) -> Float64[np.ndarray, " E"]:
        """Mean number of times that an epoch contains each entry: 1 without mixing."""
        share = np.ones(len(self.speeds) * self.num_utterances)
        for stratum in (stratum for parts in self._strata for stratum in parts):
            entries = stratum.entries if self._in_order is None else self._in_order[stratum.entries]
            share[entries] = stratum.num_drawn / len(stratum.entries)
        return share

    def __getitem__(self, position: int) -> PlannedBatch:
        epoch, number = divmod(int(position), self.batches_per_epoch)
        drawn = self._epoch(epoch)
        batch = int(drawn.order[number])
        entries = drawn.entries[self._starts[batch] : self._starts[batch + 1]]
        is_real = entries >= 0
        if self._in_order is not None:
            entries = self._in_order[entries]
        rows = np.where(is_real, entries % self.num_utterances, -1).astype(np.int32)
        speeds = np.where(is_real, np.array(self.speeds, np.float64)[entries // self.num_utterances], 1.0)
        if self.jitter:
            moved = self.jitter * self._rng(_SPEEDS, epoch, batch).uniform(-1, 1, len(speeds))
            speeds = np.where(is_real, speeds + moved, 1.0)
        return PlannedBatch(epoch, int(drawn.bucket_of[batch]), rows, speeds, self._places(epoch, rows, entries))

    def _places(self, epoch: int, rows: np.ndarray, entries: np.ndarray) -> Float64[np.ndarray, " B"]:
        places = np.zeros(len(rows))
        if self._is_cropped is not None:
            for i in np.flatnonzero((rows >= 0) & self._is_cropped[rows]).tolist():
                places[i] = self._rng(_PLACES, epoch, int(entries[i])).random()
        return places

    def fingerprint(self) -> str:
        """Digest of lengths, label counts, buckets, sources and settings. Equal digests mean equal batches."""
        return self._fingerprint

    def _epoch(self, epoch: int) -> _Epoch:
        # Threads that read ahead reach the next epoch while others still read this one: neighbouring epochs are kept.
        with self._lock:
            if epoch not in self._epochs:
                self._epochs = {e: drawn for e, drawn in self._epochs.items() if abs(e - epoch) == 1}
                self._epochs[epoch] = self._draw(epoch)
            return self._epochs[epoch]

    def _draw(self, epoch: int) -> _Epoch:
        groups = [
            np.concatenate([np.zeros(0, np.int32), *(stratum.of_epoch(epoch) for stratum in parts)])
            for parts in self._strata
        ]
        first = largest_first(self.buckets)[0] if self._pessimistic_first and epoch == 0 else None
        if self._pool is not None and epoch < self._pool.until:
            return self._draw_pooled(epoch, np.concatenate(groups), self._pool, is_first=first is not None)
        entries, begin = np.full(self._starts[-1], -1, np.int32), 0
        for k, (bucket, drawn) in enumerate(zip(self.buckets, groups, strict=True)):
            if self._is_shuffled:
                self._rng(_ENTRIES, epoch, k).shuffle(drawn)
            else:
                drawn.sort()
            if k == first:
                drawn = self._longest_first(drawn, bucket.batch_size)
            entries[begin : begin + len(drawn)] = drawn
            begin += round_up(len(drawn), bucket.batch_size)
        order = self._order(epoch, entries)
        if first is not None:
            order = _moved_to_front(order, int(np.argmax(self._bucket_of_batch == first)))
        return _Epoch(order, entries, self._bucket_of_batch)

    def _draw_pooled(self, epoch: int, drawn: np.ndarray, pool: Pool, *, is_first: bool) -> _Epoch:
        """Batches of entries of any length. If `is_first`, the first of them has the longest entries."""
        drawn = self._rng(_POOLS, epoch).permutation(drawn)
        if is_first:
            drawn = self._longest_first(drawn, pool.batch_rows)
        entries = pool.fill(drawn, self._longest[drawn], self.batches_per_epoch)
        rows = entries.reshape(-1, pool.batch_rows)
        fitting = first_fit(largest(rows, self._longest), largest(rows, self._labels), *room_of(self.buckets))
        bucket_of = np.minimum(fitting, len(self.buckets) - 1)  # the last one has room for every entry
        order = self._rng(_BATCHES, epoch).permutation(np.arange(self.batches_per_epoch))
        return _Epoch(_moved_to_front(order, 0) if is_first else order, entries, bucket_of)

    def _longest_first(self, drawn: np.ndarray, num: int) -> np.ndarray:
        """The same entries, the `num` longest ones first, in descending order."""
        longest = np.argsort(-self._lengths[drawn], kind="stable")[:num]
        return np.concatenate([drawn[longest], np.delete(drawn, longest)])

    def _mean_lengths(self, entry_lengths: np.ndarray) -> Float64[np.ndarray, " K"]:
        means = _mean_lengths(entry_lengths, self._strata)
        if not self._is_pooled:
            return means
        entries = self._epoch(0).entries
        lengths = np.add.reduceat(np.where(entries >= 0, entry_lengths[entries], 0), self._starts[:-1])
        by_bucket = np.bincount(self._bucket_of_batch, lengths, len(self.buckets))
        return by_bucket * (means.sum() / by_bucket.sum())

    def _order(self, epoch: int, entries: np.ndarray) -> Int[np.ndarray, " N"]:
        """Order of the batches in an epoch.

        Shuffled batches are permuted at random. Sorted batches are ordered by the window of their first entry, and
        longest first within a window. Unshuffled batches keep their order.
        """
        order = np.arange(self.batches_per_epoch)
        if self._is_shuffled:
            return self._rng(_BATCHES, epoch).permutation(order)
        if self._in_order is None:
            return order
        windows = self._in_order[entries[self._starts[:-1]]] % self.num_utterances // self._sort_window
        length = np.array([bucket.length for bucket in self.buckets])[self._bucket_of_batch]
        return np.lexsort((-length, windows))

    def _by_length(self, entry_lengths: np.ndarray) -> Int32[np.ndarray, " E"]:
        """Entry numbers, window by window and longest first within a window."""
        row = np.arange(len(entry_lengths), dtype=np.int32) % self.num_utterances
        return np.lexsort((row, -entry_lengths, row // self._sort_window)).astype(np.int32)

    def _rng(self, *numbers: int) -> np.random.Generator:
        # The leading stream id keeps streams distinct: NumPy treats (1, 2) and (1, 2, 0) as the same seed.
        return np.random.default_rng((self.seed, *numbers))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_epochs": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}


def local_rows(planned: PlannedBatch, layout: Layout) -> PlannedBatch:
    """Returns the rows of a batch that one process loads, with padding rows, in the order of `Layout.places`."""
    row_of = layout.places(len(planned.rows))
    is_row = row_of >= 0
    return replace(
        planned,
        rows=np.where(is_row, planned.rows[row_of], -1).astype(np.int32),
        speeds=np.where(is_row, planned.speeds[row_of], 1.0),
        places=np.where(is_row, planned.places[row_of], 0.0),
    )


def _moved_to_front(order: np.ndarray, batch: int) -> np.ndarray:
    return np.concatenate([[batch], order[order != batch]])


def _mean_lengths(entry_lengths: np.ndarray, strata: Sequence[Sequence[Stratum]]) -> Float64[np.ndarray, " K"]:
    means = [[float(entry_lengths[s.entries].mean(dtype=np.float64)) * s.num_drawn for s in parts] for parts in strata]
    return np.array([sum(part) for part in means], np.float64)
