"""From planned batches to padded arrays: Grain reads positions of the plan, in threads and worker processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import grain
import numpy as np
from absl import flags
from jaxtyping import Float32, Int16

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Batch
from asr_jax.data.batching.batch_plan import PlannedBatch, local_rows
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import Index
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Rejected

SHARED_FROM = 1 << 16
"""Bytes from which on an array of a worker comes through shared memory: to make and remove it takes longer than to send
less. With all arrays shared, workers read a tenth less."""

# How much less than its manifest says a signal may have: more of both means that some of it is lost.
SLACK_S, SLACK_SHARE = 0.5, 0.1


@dataclass(frozen=True)
class LoadedBatch:
    """A batch of NumPy arrays, where it lies in the plan, and what could not be read."""

    batch: Batch
    position: int
    rejected: tuple[Rejected, ...]
    """For each row with weight 0: its audio is missing, damaged, too long or too short."""


@runtime_checkable
class Plan(Protocol):
    """What a source needs of a plan, such as a BatchPlan."""

    @property
    def buckets(self) -> tuple[Bucket, ...]: ...

    def __getitem__(self, position: int) -> PlannedBatch: ...


class BatchSource:
    """`source[position]` loads the batch that the plan has there; this process's rows of it."""

    def __init__(self, index: Index, plan: Plan, *, process_index: int = 0, num_processes: int = 1) -> None:
        self.plan = plan
        self.process_index = process_index
        self.num_processes = num_processes
        self._index = index  # worker processes map its columns again

    def __len__(self) -> int:
        """As good as endless: epochs follow each other."""
        return 1 << 62

    def __getitem__(self, position: int) -> LoadedBatch:
        planned = local_rows(self.plan[position], self.process_index, self.num_processes)
        bucket = self.plan.buckets[planned.bucket]
        num_rows = len(planned.rows)
        utterances, scale = self._index.utterances, self._index.scale
        columns = utterances.columns
        shape, dtype = ((scale.num_values,), np.float32) if scale.of_features else ((), np.int16)
        signals = np.zeros((num_rows, bucket.length, *shape), dtype)
        tokens = np.zeros((num_rows, bucket.num_tokens), np.int32)
        lengths, token_lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        weights = np.zeros(num_rows, np.float32)
        rejected = []
        for i in np.flatnonzero(planned.rows >= 0):
            row = int(planned.rows[i])
            location = columns.locations.text(int(utterances.rows[row]))  # a whole utterance takes 3 % of the time
            try:
                signal = self._read(location, float(planned.speeds[i]), int(self._index.lengths[row]), bucket.length)
            except AudioError as error:
                rejected.append(Rejected(utterances[row].id, location, error.reason, "audio"))
                continue
            labels = self._index.labels_of(row)
            signals[i, : len(signal)], lengths[i] = signal, len(signal)
            tokens[i, : len(labels)], token_lengths[i] = labels, len(labels)
            weights[i] = 1
        audio, features = (None, signals) if scale.of_features else (signals, None)
        batch = Batch(audio, features, lengths, tokens, token_lengths, weights, planned.rows)
        return LoadedBatch(batch, int(position), tuple(rejected))

    def _read(
        self, location: str, speed: float, length: int, room: int
    ) -> Int16[np.ndarray, " S"] | Float32[np.ndarray, "T F"]:
        """Samples or features; at most `room` of them, and about `length / speed` or more."""
        scale = self._index.scale
        place = Location.parse(location)
        signal = place.features() if scale.of_features else place.audio(rate_hz=int(scale.per_s), speed=speed)
        if len(signal) > room:
            raise AudioError(
                location,
                f"longer than its manifest says: {len(signal) / scale.per_s:.2f} s where its bucket has room for "
                f"{room / scale.per_s:.2f} s; correct its duration",
            )
        missing = length / speed - len(signal)
        if missing > max(SLACK_S * scale.per_s, SLACK_SHARE * length / speed):
            raise AudioError(
                location,
                f"shorter than its manifest says: {len(signal) / scale.per_s:.2f} s of "
                f"{length / speed / scale.per_s:.2f} s; is it cut? Copy it again, or correct its duration",
            )
        return signal


@contextmanager
def open_batches(
    source: BatchSource,
    *,
    start: int = 0,
    stop: int | None = None,
    workers: int = 0,
    threads: int = 2,
    read_ahead: int = 4,
) -> Iterator[Iterator[LoadedBatch]]:
    """`with open_batches(source, start=n) as batches:` iterates positions n, n + 1, … in order, up to `stop`.

    `threads` read in this process or, where there are `workers`, in each of as many worker processes; each of these
    processes holds up to `read_ahead` batches. The batches and their order do not depend on any of the three. A
    script that uses workers guards its top level by `if __name__ == "__main__"`: workers import it.
    """
    # Workers that come to an end leave shared memory behind; those that are closed do not. So these never come to one.
    dataset = grain.MapDataset.source(_PlainSource(source))[start : None if workers else stop]
    batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=read_ahead))
    if workers:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, which only absl.app.run parses.
        sharing = grain.experimental.DatasetOptions(min_shm_size=SHARED_FROM)
        batches = grain.experimental.WithOptionsIterDataset(batches, sharing)
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=1)
        batches = batches.mp_prefetch(options, worker_init_fn=_begin_worker)
    iterator: Any = iter(batches)
    num = None if stop is None else stop - start
    loaded = (_loaded(plain, copy=workers > 0) for plain in islice(iterator, num))
    try:
        yield loaded
    finally:
        # First what holds the last batch: shared memory and iterators that live until Python ends are complained of.
        loaded.close()
        iterator.close()


@dataclass(frozen=True)
class _PlainSource:
    """What Grain reads: dicts of arrays, because it maps trees to leaves of its own, which a Batch does not take."""

    source: BatchSource

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, position: int) -> dict[str, Any]:
        loaded = self.source[position]
        return {
            "arrays": vars(loaded.batch), "position": loaded.position,
            "rejected": tuple((each.id, each.location, each.reason) for each in loaded.rejected),
        }  # fmt: skip


def _loaded(plain: dict[str, Any], *, copy: bool) -> LoadedBatch:
    """The batch again, out of shared memory where workers put it: what is still there when Python ends is a leak."""
    arrays = plain["arrays"]
    if copy:
        arrays = {name: None if array is None else np.array(array) for name, array in arrays.items()}
    rejected = tuple(Rejected(name, where, reason, "audio") for name, where, reason in plain["rejected"])
    return LoadedBatch(Batch(**arrays), plain["position"], rejected)


def _begin_worker(worker: int, num_workers: int) -> None:
    """Leaves signals to the parent, and ends when the parent is gone: Grain's workers outlive a killed one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
