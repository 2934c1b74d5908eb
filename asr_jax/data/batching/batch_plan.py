"""Batch plan: utterances and speeds of every batch, as a pure function of index, buckets, seed and epoch."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int, Int32

from asr_jax.core.layout import Layout
from asr_jax.data.batching.buckets import Bucket, assign, perturbed_lengths, slowest
from asr_jax.data.batching.mixing import Stratum, num_drawn, strata

Order = Literal["shuffled", "sorted", "unshuffled"]
_MEMBERS, _ENTRIES, _BATCHES, _SPEEDS, _PLACES = 1, 2, 3, 4, 5  # ids of the random streams


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


class BatchPlan:
    """Global batches by position: `plan[position]` is batch `position % batches_per_epoch` of its epoch.

    An entry is a pair of utterance and speed, and an epoch contains every entry once. An entry belongs to the same
    bucket in every epoch; with `jitter`, it is the first bucket that the entry fits at its slowest speed. The last
    batch of a bucket is filled with padding rows.

    With `source_of` and `shares`, an epoch contains only a share of the entries of each source. The number of entries
    of each bucket and source is the same in every epoch, and at least one if there are any. All of them are used before
    any is repeated.

    The place of a crop depends on seed, epoch and entry alone, not on the other rows of its batch.

    Args:
        lengths: Length of each utterance, in samples or frames [R].
        num_labels: Number of labels of each utterance [R].
        buckets: Batch shapes. Every entry must fit one of them.
        seed: Seed of the order and of the jitter.
        speeds: Playback speeds.
        jitter: Largest random change of each speed, drawn for every entry and epoch.
        order: shuffled: entries within their bucket, then batches, are permuted by (seed, epoch). sorted: longest first
            within windows of `sort_buffer` utterances in manifest order. unshuffled: bucket by bucket, in ascending
            order of rows, for evaluation.
        sort_buffer: Window of the sorted order, in utterances.
        source_of: Source of each utterance, as an index into `shares` [R]. None: one source.
        shares: Share of each source that an epoch contains, 0 to 1 [G]. None: everything.
        is_cropped: Whether each utterance is a random part of a longer one [R]. None: none is.
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, " R"],
        num_labels: Int[np.ndarray, " R"],
        buckets: Sequence[Bucket],
        *,
        seed: int = 0,
        speeds: Sequence[float] = (1.0,),
        jitter: float = 0.0,
        order: Order = "shuffled",
        sort_buffer: int = 4096,
        source_of: Int[np.ndarray, " R"] | None = None,
        shares: Float64[np.ndarray, " G"] | None = None,
        is_cropped: Bool[np.ndarray, " R"] | None = None,
    ) -> None:
        self.buckets, self.seed, self.speeds, self.order = tuple(buckets), seed, tuple(speeds), order
        self.jitter, self._is_cropped = jitter, is_cropped
        self.num_utterances, self._sort_buffer = len(lengths), sort_buffer
        entry_lengths, labels = perturbed_lengths(lengths, speeds), np.tile(num_labels, len(speeds))
        sources = np.zeros(len(entry_lengths), np.int32) if source_of is None else np.tile(source_of, len(speeds))
        shares = np.ones(1) if shares is None else shares
        self._fingerprint = _digest(
            (entry_lengths, labels, sources, shares), self.buckets, self.speeds, seed, order, sort_buffer,
            *([jitter] if jitter else []), *([] if is_cropped is None else [is_cropped.tobytes()]),
        )  # fmt: skip
        longest = perturbed_lengths(lengths, slowest(speeds, jitter)) if jitter else entry_lengths
        bucket_of = assign(longest, labels, self.buckets)
        # In sorted order, an entry is numbered by its position in this array.
        self._in_order = self._by_length(entry_lengths) if order == "sorted" else None
        if self._in_order is not None:
            entry_lengths, bucket_of, sources = (of[self._in_order] for of in (entry_lengths, bucket_of, sources))
        num = np.bincount(bucket_of * len(shares) + sources, minlength=len(self.buckets) * len(shares))
        drawn = num_drawn(num.reshape(len(self.buckets), -1), shares)
        members = (np.flatnonzero(bucket_of == k).astype(np.int32) for k in range(len(self.buckets)))
        self._strata = [
            strata(entries, sources[entries], drawn[k], self._rng(_MEMBERS, k)) for k, entries in enumerate(members)
        ]
        sizes = np.array([bucket.batch_size for bucket in self.buckets])
        batches = -(-drawn.sum(axis=1) // sizes)
        self._bucket_of_batch = np.repeat(np.arange(len(sizes)), batches)
        self._starts = np.concatenate([[0], np.cumsum(np.repeat(sizes, batches))])
        self.length_by_bucket = _mean_lengths(entry_lengths, self._strata)
        """Total length of an epoch without padding, by bucket, in samples or frames. With mixing, the mean over all
        epochs."""
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    @property
    def batches_per_epoch(self) -> int:
        return len(self._bucket_of_batch)

    @property
    def entries_per_epoch(self) -> int:
        return sum(self.entries_by_bucket())

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
        return [sum(stratum.num_drawn for stratum in parts) for parts in self._strata]

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
        return PlannedBatch(epoch, int(self._bucket_of_batch[batch]), rows, speeds, self._places(epoch, rows, entries))

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
        entries = np.full(self._starts[-1], -1, np.int32)
        first = 0
        for k, (bucket, parts) in enumerate(zip(self.buckets, self._strata, strict=True)):
            drawn = np.concatenate([np.zeros(0, np.int32), *(stratum.of_epoch(epoch) for stratum in parts)])
            if self.order == "shuffled":
                self._rng(_ENTRIES, epoch, k).shuffle(drawn)
            else:
                drawn.sort()
            entries[first : first + len(drawn)] = drawn
            first += -(-len(drawn) // bucket.batch_size) * bucket.batch_size
        return _Epoch(self._order(epoch, entries), entries)

    def _order(self, epoch: int, entries: np.ndarray) -> Int[np.ndarray, " N"]:
        """Order of the batches in an epoch.

        Shuffled batches are permuted at random. Sorted batches are ordered by the window of their first entry, and
        longest first within a window. Unshuffled batches keep their order.
        """
        order = np.arange(self.batches_per_epoch)
        if self.order == "shuffled":
            return self._rng(_BATCHES, epoch).permutation(order)
        if self._in_order is None:
            return order
        windows = self._in_order[entries[self._starts[:-1]]] % self.num_utterances // self._sort_buffer
        length = np.array([bucket.length for bucket in self.buckets])[self._bucket_of_batch]
        return np.lexsort((-length, windows))

    def _by_length(self, entry_lengths: np.ndarray) -> Int32[np.ndarray, " E"]:
        """Entry numbers, window by window and longest first within a window."""
        row = np.arange(len(entry_lengths), dtype=np.int32) % self.num_utterances
        return np.lexsort((row, -entry_lengths, row // self._sort_buffer)).astype(np.int32)

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


def _mean_lengths(entry_lengths: np.ndarray, strata: Sequence[Sequence[Stratum]]) -> Float64[np.ndarray, " K"]:
    means = [[float(entry_lengths[s.entries].mean(dtype=np.float64)) * s.num_drawn for s in parts] for parts in strata]
    return np.array([sum(part) for part in means], np.float64)


def _digest(arrays: Sequence[np.ndarray], *settings: Any) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]
