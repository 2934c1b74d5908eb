"""Benchmark of reading: throughput from audio files to batches, compared with plain decoding, and growth of memory."""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np
import soundfile

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.text_files import read_text
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import make_buckets
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import Index, build_index, scale_of
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.text.tokenizers import TokenizerSettings, train_tokenizer

READ_AHEAD = 4
WARM_UP, WINDOW = 100, 100
"""Number of batches before the first measurement of memory, and number of batches per median."""


def index_of(paths: Sequence[str]) -> Index:
    """Index of all utterances of some manifests, with characters as labels."""
    utterances = read_utterances(paths)
    tokenizer = train_tokenizer(TokenizerSettings(), utterances.texts())
    scale = scale_of(KaldiFbank(), of_features=False)
    return build_index(utterances, scale=scale, tokenizer=tokenizer, filters=Filters.none())[0]


def source_of(index: Index, *, batch_seconds: float, num_buckets: int = 4) -> BatchSource:
    """Shuffled batches of all utterances, with at most `batch_seconds` of audio with padding."""
    batching = Batching(num_buckets=num_buckets, budget=batch_seconds, row_multiple=1)
    return BatchSource(index, BatchPlan(index.entries(), make_buckets(index.entries(), batching)))


def throughput(index: Index, *, batch_seconds: float, processes: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Measures reading in three ways: `bare` decoding in processes, and batches read by `threads` or `workers`.

    The ways are measured in turn, and the result is the median of the repetitions.

    Args:
        batch_seconds: Size of a batch in seconds of audio with padding.

    Returns:
        Seconds of audio per second of wall-clock time (`per_s`) and per second of CPU time of all cores (`per_cpu_s`),
        for each way. The latter is 0 without /proc; the load of the machine hardly affects it.
    """
    source = source_of(index, batch_seconds=batch_seconds)
    ways = {"threads": {"threads": processes}, "workers": {"workers": processes, "threads": 1}}
    rates: dict[str, list[tuple[float, float]]] = {"bare": [], "threads": [], "workers": []}
    with ExitStack() as stack:
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
        paths, decode = audio_paths(index), partial(_decoded_s, seconds=seconds)
        parts = [paths[place::processes] or paths for place in range(processes)]

        def bare() -> float:
            return sum(pool.imap_unordered(decode, parts))

        bare()  # the processes have started afterwards
        opened = {
            name: stack.enter_context(open_batches(source, read_ahead=READ_AHEAD, **way)) for name, way in ways.items()
        }
        for _ in range(repeats):
            rates["bare"].append(_measured(bare))
            for name, batches in opened.items():
                # Batches that were read ahead during other measurements are consumed first.
                for _ in range(2 * (READ_AHEAD + 1) * processes):
                    next(batches)
                rates[name].append(_measured(partial(_loaded_s, batches, seconds)))
    wall, cpu = ({name: [pair[place] for pair in found] for name, found in rates.items()} for place in (0, 1))
    return {"processes": processes, "per_s": _compared(wall), "per_cpu_s": _compared(cpu)}


def memory_growth(source: BatchSource, *, workers: int, num_batches: int) -> dict[str, float]:
    """Measures the resident memory of this process and its workers while batches are read.

    Args:
        workers: Number of worker processes; 0: two threads.
        num_batches: Number of batches after 100 batches of warm-up.

    Returns:
        Median bytes over the first and over the last 100 batches, and their relative growth; zeros without /proc.
    """
    found = []
    with open_batches(source, workers=workers, threads=1 if workers else 2, read_ahead=READ_AHEAD) as batches:
        for number, _ in zip(range(WARM_UP + num_batches), batches, strict=False):
            if number >= WARM_UP:
                found.append(_resident_of_all())
    first, last = float(np.median(found[:WINDOW])), float(np.median(found[-WINDOW:]))
    return {
        "batches": num_batches,
        "workers": workers,
        "first_bytes": first,
        "last_bytes": last,
        "growth": last / first - 1 if first else 0.0,
    }


def audio_paths(index: Index) -> list[str]:
    """Paths of the audio files of all utterances."""
    return [Location.parse(utterance.location).path for utterance in index.utterances]


def _compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    median = {name: float(np.median(found)) for name, found in rates.items()}
    to_bare = {name: median[name] / median["bare"] for name in median} if median["bare"] else {}
    return {"median": median, "to_bare": to_bare, "all": rates}


def _measured(work: Callable[[], float]) -> tuple[float, float]:
    """Result of `work` per second of wall-clock time, and per second of CPU time of all cores."""
    start, used = time.perf_counter(), _cpu_s()
    done = work()
    used = _cpu_s() - used
    return done / (time.perf_counter() - start), done / used if used else 0.0


def _loaded_s(batches: Iterator[LoadedBatch], seconds: float) -> float:
    start, samples = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        samples += int(next(batches).batch.lengths.sum())
    return samples / 16000


def _decoded_s(paths: Sequence[str], seconds: float) -> float:
    """Decodes files one after another for some seconds; returns the seconds of audio."""
    start, decoded = time.perf_counter(), 0.0
    for path in itertools.cycle(paths):
        if time.perf_counter() - start >= seconds:
            break
        samples, rate_hz = soundfile.read(path, dtype="int16")
        decoded += len(samples) / rate_hz
    return decoded


def _resident_of_all() -> int:
    return sum(int(text.split()[1]) for text in _of_all("statm")) * os.sysconf("SC_PAGE_SIZE")


def _cpu_s() -> float:
    fields = (text.rpartition(")")[2].split() for text in _of_all("stat"))
    return sum(int(of_process[11]) + int(of_process[12]) for of_process in fields) / os.sysconf("SC_CLK_TCK")


def _of_all(name: str) -> Iterator[str]:
    """Content of a file of /proc, for this process and each of its children; nothing without /proc."""
    for pid in ("self", *(process.pid for process in multiprocessing.active_children())):
        with suppress(OSError):
            yield read_text(f"/proc/{pid}/{name}")
