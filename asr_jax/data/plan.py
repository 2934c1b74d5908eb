"""The plan: which records make which batch, for ever, as a function of index, buckets, seed and epoch alone."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int32

from asr_jax.data.buckets import Bucket, assign, perturbed_lengths


@dataclass(frozen=True)
class PlannedBatch:
    """One batch before any audio is opened."""

    epoch: int
    bucket: int
    """Position in `BatchPlan.buckets`."""
    rows: Int32[np.ndarray, " B"]
    """Rows of the index; -1 for padding."""
    speeds: Float64[np.ndarray, " B"]
    """1.1 is faster and shorter."""


@dataclass(frozen=True)
class _Epoch:
    order: np.ndarray
    """The batches of the epoch, as numbered bucket by bucket."""
    entries: np.ndarray
    """The entries of all batches, bucket by bucket, -1 for padding."""


class BatchPlan:
    """Global batches by position: `plan[position]` is batch `position % batches_per_epoch` of an epoch.

    An epoch holds every record once per speed: an entry is a (record, speed). Which bucket an entry belongs to never
    changes; entries are shuffled inside their bucket and batches among each other, from (seed, epoch) alone. A
    bucket's last batch is filled with padding rows. `shuffle=False`: bucket by bucket, rows rising, for evaluation.
    """

    def __init__(
        self,
        samples: Int[np.ndarray, " R"],
        num_labels: Int[np.ndarray, " R"],
        buckets: Sequence[Bucket],
        *,
        seed: int = 0,
        speeds: Sequence[float] = (1.0,),
        shuffle: bool = True,
    ) -> None:
        self.buckets = tuple(buckets)
        self.seed = seed
        self.speeds = tuple(speeds)
        self.shuffle = shuffle
        self.num_records = len(samples)
        lengths = perturbed_lengths(samples, speeds)
        labels = np.tile(num_labels, len(speeds))
        bucket_of = assign(lengths, labels, self.buckets)
        self._members = [np.flatnonzero(bucket_of == k).astype(np.int32) for k in range(len(self.buckets))]
        sizes = [bucket.batch_size for bucket in self.buckets]
        batches = [-(-len(member) // size) for member, size in zip(self._members, sizes, strict=True)]
        self._bucket_of_batch = np.repeat(np.arange(len(sizes)), batches)
        self._starts = np.concatenate([[0], np.cumsum(np.repeat(sizes, batches))])
        planned = sum(
            bucket.num_samples * bucket.batch_size * n for bucket, n in zip(self.buckets, batches, strict=True)
        )
        self.samples_per_epoch = int(lengths.sum(dtype=np.int64))
        self.padding_share = 1 - self.samples_per_epoch / planned
        self._fingerprint = _digest(lengths, labels, self.buckets, self.speeds, seed, shuffle)
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    @property
    def batches_per_epoch(self) -> int:
        return len(self._bucket_of_batch)

    def __getitem__(self, position: int) -> PlannedBatch:
        epoch, number = divmod(int(position), self.batches_per_epoch)
        drawn = self._epoch(epoch)
        batch = int(drawn.order[number])
        entries = drawn.entries[self._starts[batch] : self._starts[batch + 1]]
        is_real = entries >= 0
        rows = np.where(is_real, entries % self.num_records, -1).astype(np.int32)
        speeds = np.where(is_real, np.array(self.speeds, np.float64)[entries // self.num_records], 1.0)
        return PlannedBatch(epoch, int(self._bucket_of_batch[batch]), rows, speeds)

    def fingerprint(self) -> str:
        """Equal where every batch at every position is: hashes lengths, label counts, buckets, speeds and seed."""
        return self._fingerprint

    def _epoch(self, epoch: int) -> _Epoch:
        # Threads that read ahead cross into the next epoch while others finish this one: two are kept.
        with self._lock:
            if epoch not in self._epochs:
                self._epochs = {e: drawn for e, drawn in self._epochs.items() if abs(e - epoch) == 1}
                self._epochs[epoch] = self._draw(epoch)
            return self._epochs[epoch]

    def _draw(self, epoch: int) -> _Epoch:
        rng = np.random.default_rng((self.seed, epoch))
        entries = np.full(self._starts[-1], -1, np.int32)
        start = 0
        for bucket, member in zip(self.buckets, self._members, strict=True):
            entries[start : start + len(member)] = rng.permutation(member) if self.shuffle else member
            start += -(-len(member) // bucket.batch_size) * bucket.batch_size
        order = np.arange(self.batches_per_epoch)
        return _Epoch(rng.permutation(order) if self.shuffle else order, entries)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_epochs": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}


def local_rows(planned: PlannedBatch, process_index: int, num_processes: int) -> PlannedBatch:
    """The rows that one of several hosts loads: its contiguous share, in the order of the processes.

    Raises: ValueError where the rows cannot be split evenly.
    """
    if len(planned.rows) % num_processes:
        raise ValueError(f"{len(planned.rows)} rows cannot be split over {num_processes} processes")
    size = len(planned.rows) // num_processes
    share = slice(process_index * size, (process_index + 1) * size)
    return replace(planned, rows=planned.rows[share], speeds=planned.speeds[share])


def _digest(lengths: np.ndarray, labels: np.ndarray, *settings: Any) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    for numbers in (lengths, labels):
        digest.update(np.ascontiguousarray(numbers, np.int32))
    return digest.hexdigest()[:16]
