"""From planned batches to padded arrays: Grain reads positions of the plan, in threads and worker processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from absl import flags
from jaxtyping import Int16

from asr_jax.audio.io import AudioError, read_audio
from asr_jax.core.batch import Batch
from asr_jax.data.index import Index
from asr_jax.data.plan import BatchPlan, local_rows


@dataclass(frozen=True)
class LoadedBatch:
    """A batch of NumPy arrays, where it lies in the plan, and what could not be read."""

    batch: Batch
    position: int
    skipped: tuple[dict[str, str], ...]
    """`{id, audio_path, reason}` of each row that has weight 0 because its audio is missing, broken or too long."""


class BatchSource:
    """`source[position]` loads the batch that the plan has there; this process's rows of it."""

    def __init__(self, index: Index, plan: BatchPlan, *, process_index: int = 0, num_processes: int = 1) -> None:
        self.plan = plan
        self.process_index = process_index
        self.num_processes = num_processes
        # Not the whole index: what is held here is copied to every worker process.
        self._rate_hz = index.rate_hz
        self._labels = index.labels
        self._ids = index.ids
        self._audio_paths = index.audio_paths

    def __len__(self) -> int:
        """As good as endless: epochs follow each other."""
        return 1 << 62

    def __getitem__(self, position: int) -> LoadedBatch:
        planned = local_rows(self.plan[position], self.process_index, self.num_processes)
        bucket = self.plan.buckets[planned.bucket]
        num_rows = len(planned.rows)
        audio = np.zeros((num_rows, bucket.num_samples), np.int16)
        tokens = np.zeros((num_rows, bucket.num_tokens), np.int32)
        lengths, token_lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        weights = np.zeros(num_rows, np.float32)
        skipped = []
        for i in np.flatnonzero(planned.rows >= 0):
            row = int(planned.rows[i])
            try:
                samples = self._read(row, float(planned.speeds[i]), bucket.num_samples)
            except AudioError as error:
                skipped.append({"id": self._ids.text(row), "audio_path": error.path, "reason": error.reason})
                continue
            labels = self._labels[row]
            audio[i, : len(samples)], lengths[i] = samples, len(samples)
            tokens[i, : len(labels)], token_lengths[i] = labels, len(labels)
            weights[i] = 1
        batch = Batch(audio, None, lengths, tokens, token_lengths, weights, planned.rows)
        return LoadedBatch(batch, int(position), tuple(skipped))

    def _read(self, row: int, speed: float, num_samples: int) -> Int16[np.ndarray, " S"]:
        audio_path = self._audio_paths.text(row)
        samples = read_audio(audio_path, rate_hz=self._rate_hz, speed=speed)
        if len(samples) > num_samples:
            raise AudioError(
                audio_path,
                f"longer than its manifest says: {len(samples) / self._rate_hz:.2f} s where its bucket has room for "
                f"{num_samples / self._rate_hz:.2f} s; correct its duration",
            )
        return samples


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
    dataset = grain.MapDataset.source(_PlainSource(source))[start:stop]
    batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=read_ahead))
    if workers:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, which only absl.app.run parses.
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=1)
        batches = batches.mp_prefetch(options, worker_init_fn=_begin_worker)
    iterator: Any = iter(batches)
    loaded = (_loaded(plain, copy=workers > 0) for plain in iterator)
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
        return {"arrays": vars(loaded.batch), "position": loaded.position, "skipped": loaded.skipped}


def _loaded(plain: dict[str, Any], *, copy: bool) -> LoadedBatch:
    """The batch again, out of shared memory where workers put it: what is still there when Python ends is a leak."""
    arrays = plain["arrays"]
    if copy:
        arrays = {name: None if array is None else np.array(array) for name, array in arrays.items()}
    return LoadedBatch(Batch(**arrays), plain["position"], plain["skipped"])


def _begin_worker(worker: int, num_workers: int) -> None:
    """Leaves signals to the parent, and ends when the parent is gone: Grain's workers outlive a killed one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
