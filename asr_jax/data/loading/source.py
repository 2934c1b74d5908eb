"""Loading of planned batches as padded arrays with Grain, in threads and worker processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import grain
import jax
import numpy as np
from absl import flags
from jaxtyping import Float32, Int16

from asr_jax.audio.io import AudioError, Remarks
from asr_jax.core.batch import Batch
from asr_jax.core.environment import READING_THREADS
from asr_jax.core.layout import Layout
from asr_jax.data.batching.batch_plan import PlannedBatch, local_rows
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import Index
from asr_jax.data.manifests.durations import difference, joined_remarks, tolerated_s
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.storage import Storage, reads_of
from asr_jax.data.manifests.utterances import Rejected

SHARED_FROM = 1 << 16
"""Size in bytes from which arrays of a worker are sent through shared memory. Smaller arrays are faster to send than
shared memory is to create and remove: if all arrays are shared, workers read a tenth less."""


@dataclass(frozen=True)
class LoadedBatch:
    """Batch of NumPy arrays, its position in the plan, and the utterances that could not be read."""

    batch: Batch
    position: int
    bucket: int
    """Index into the buckets of the plan."""
    rejected: tuple[Rejected, ...]
    """Utterances whose audio is missing, damaged, too short, or silent in spite of a text; their rows have weight 0."""
    differing: tuple[Rejected, ...] = ()
    """Utterances that are used with remarks on their audio, such as another duration than in the manifest. Longer audio
    is used up to that duration."""
    ids: tuple[str, ...] = ()
    """Ids of the rows of a batch of shards, whose numbers are not rows of an index."""
    state: dict[str, Any] | None = None
    """State after a batch of shards, from which the next one is read. None: it follows from the position."""
    loading_s: float = 0.0
    """Seconds in which a thread or worker read the batch."""


@runtime_checkable
class BatchSequence(Protocol):
    """Interface of a plan that a source reads, such as `BatchPlan`."""

    @property
    def buckets(self) -> tuple[Bucket, ...]: ...

    def __getitem__(self, position: int) -> PlannedBatch: ...


class BatchSource:
    """Loads batches of a plan: `source[position]` returns the rows of the batch at that position.

    With a layout, these are the rows of this process, part by part, with padding rows.
    """

    def __init__(
        self, index: Index, plan: BatchSequence, layout: Layout | None = None, *, storage: Storage | None = None
    ) -> None:
        """Initialises without reading.

        Args:
            layout: Rows of this process. None: all.
            storage: Patience with storage. None: the defaults.
        """
        self.plan, self._storage = plan, storage or Storage()
        self.layout = layout or Layout()
        self._index = index  # pickled as file names: worker processes map the columns again

    def __len__(self) -> int:
        """A practically unlimited number, because a plan has no last epoch."""
        return 1 << 62

    def __getitem__(self, position: int) -> LoadedBatch:
        planned = local_rows(self.plan[position], self.layout)
        bucket = self.plan.buckets[planned.bucket]
        num_rows = len(planned.rows)
        utterances, scale = self._index.utterances, self._index.scale
        columns = utterances.columns
        shape, dtype = ((scale.num_values,), np.float32) if scale.of_features else ((), np.int16)
        signals = np.zeros((num_rows, bucket.length, *shape), dtype)
        tokens = np.zeros((num_rows, bucket.num_tokens), np.int32)
        lengths, token_lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        weights = np.zeros(num_rows, np.float32)
        rejected, differing = [], []
        for i in np.flatnonzero(planned.rows >= 0):
            row = int(planned.rows[i])
            location = columns.locations.text(int(utterances.rows[row]))  # building the Utterance takes 3 % of the time
            try:
                length, stretches = int(self._index.lengths[row]), self._index.stretches
                part = None if stretches is None else stretches.part(row, length, float(planned.places[i]))
                remarks = Remarks()
                signal, differs = self._read(location, float(planned.speeds[i]), length, bucket.length, part, remarks)
                if part is None and (remarks.is_silent or remarks.reasons):
                    differs = joined_remarks(utterances[row], remarks, differs)
            except AudioError as error:
                rejected.append(Rejected(utterances[row].id, location, error.reason, "audio"))
                continue
            if differs:
                differing.append(Rejected(utterances[row].id, location, differs, "used"))
            labels = self._index.labels_of(row, position=int(position), most=bucket.num_tokens)
            signals[i, : len(signal)], lengths[i] = signal, len(signal)
            tokens[i, : len(labels)], token_lengths[i] = labels, len(labels)
            weights[i] = 1
        audio, features = (None, signals) if scale.of_features else (signals, None)
        batch = Batch(audio, features, lengths, tokens, token_lengths, weights, planned.rows)
        return LoadedBatch(batch, int(position), planned.bucket, tuple(rejected), tuple(differing))

    def _read(
        self, location: str, speed: float, length: int, room: int, part: tuple[int, int] | None, remarks: Remarks
    ) -> tuple[Int16[np.ndarray, " S"] | Float32[np.ndarray, "T F"], str]:
        """Reads samples or features of an utterance.

        A duration without an offset is that of the part from the beginning of the file, as in NeMo. Audio is cut after
        it, unless the duration is only rounded.

        Args:
            length: Length in the manifest or of the part. It, `room` and `part` are in samples or frames.
            room: Length of the bucket.
            part: Begin and end of the part of the utterance to read. None: the whole utterance.

        Returns:
            The signal, and the difference between its duration and the manifest's; empty if it is tolerated.
        """
        scale, place, reads = self._index.scale, Location.parse(location), reads_of(self._storage)
        if scale.of_features:
            features = reads(place.path, place.features)
            if part:
                return features[slice(*part)], ""
            check_room(features, room, location)
            return features, ""
        if part:
            start_s = place.start_s + part[0] / scale.per_s
            place = replace(place, start_s=start_s, length_s=length / scale.per_s, may_overshoot=True)
        samples = reads(place.path, lambda: place.audio(rate_hz=int(scale.per_s), speed=speed, remarks=remarks))
        return used_part(samples, place, speed=speed, length=length, room=room, per_s=scale.per_s)


def used_part(
    samples: Int16[np.ndarray, " S"], place: Location, *, speed: float, length: int, room: int, per_s: float
) -> tuple[Int16[np.ndarray, " U"], str]:
    """Samples up to the duration in the manifest, and the difference between both durations.

    Args:
        samples: Samples, played at `speed`.
        length: Length in the manifest in samples, at speed 1.
        room: Length of the bucket in samples.
        per_s: Samples per second.

    Returns:
        The samples, and the difference as a message; empty if it is tolerated.

    Raises:
        AudioError: If a part of the audio is missing.
    """
    there_s, duration_s = len(samples) * speed / per_s, length / per_s
    is_longer = there_s - duration_s > tolerated_s(duration_s)
    used = min(round(length / speed), room) if is_longer else room
    return samples[:used], difference(there_s, duration_s, place)


def check_room(features: Float32[np.ndarray, "T F"], room: int, location: str) -> None:
    """Checks that ready features fit a bucket.

    Args:
        room: Length of the bucket in frames.

    Raises:
        AudioError: If there are more frames.
    """
    if len(features) > room:
        raise AudioError(location, f"{len(features)} frames where its bucket has room for {room}; correct the manifest")


@contextmanager
def open_batches(
    source: BatchSource,
    *,
    start: int = 0,
    stop: int | None = None,
    workers: int = 0,
    threads: int = READING_THREADS,
    read_ahead: int = 4,
) -> Iterator[Iterator[LoadedBatch]]:
    """Opens an iterator over loaded batches at positions `start`, `start` + 1, … in order.

    The batches and their order do not depend on `workers`, `threads` and `read_ahead`. A script that uses workers must
    guard its top level by `if __name__ == "__main__"`, because workers import it.

    Args:
        start: First position.
        stop: Position after the last one. None: unlimited.
        workers: Number of worker processes. 0: threads of this process read.
        threads: Number of reading threads in this process, or in each worker process.
        read_ahead: Maximum number of batches that each reading process holds.
    """
    # Workers that reach the end of their data leave shared memory behind, and workers that are closed do not. Therefore
    # the data of workers have no end.
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
        # The generator holds the last batch and is closed first, because shared memory and iterators that live until
        # Python exits cause warnings.
        loaded.close()
        iterator.close()


@dataclass(frozen=True)
class _PlainSource:
    """Source of dicts of arrays for Grain, which maps trees with leaf types that a Batch does not accept."""

    source: BatchSource

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, position: int) -> dict[str, Any]:
        start_s = time.perf_counter()
        loaded = self.source[position]
        return vars(loaded) | {"batch": vars(loaded.batch), "loading_s": time.perf_counter() - start_s}


def _loaded(plain: dict[str, Any], *, copy: bool) -> LoadedBatch:
    """Rebuilds the batch. `copy` copies it out of shared memory, which leaks if it is in use when Python exits."""
    arrays = plain["batch"]
    if copy:
        arrays = {name: None if array is None else np.array(array) for name, array in arrays.items()}
    return LoadedBatch(**plain | {"batch": Batch(**arrays)})


def _begin_worker(worker: int, num_workers: int) -> None:
    """Ignores signals, which the parent handles, and starts a thread that ends the worker with its parent.

    Without the thread, Grain's workers outlive a killed parent. JAX is set to the CPU, because a worker that used it
    would otherwise reserve memory of the GPU.
    """
    jax.config.update("jax_platforms", "cpu")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
