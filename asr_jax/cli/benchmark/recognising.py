"""Timing of recognition: one batch as a whole and in parts, and a whole set from files to texts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from asr_jax.cli.benchmark.systems import System
from asr_jax.core.batch import Batch, Encoded
from asr_jax.core.devices import local_devices
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.loading.source import BatchSource, open_batches
from asr_jax.inference.decoder import HeadSearch, without_labels

PARTS = ("features", "network", "decoding")
Times = dict[str, list[float]]


class TimedRecognition:
    """Recognition on one device, as one program (like evaluation and transcription) and as three programs."""

    def __init__(self, system: System, search: HeadSearch) -> None:
        model = system.model

        def encoded(variables: Any, batch: Batch) -> Any:
            return model.apply(variables, batch, step=None, method="encode")

        def features(variables: Any, batch: Batch) -> Any:
            return model.apply(variables, batch, step=None, method="augmented")

        def found_in(variables: Any, encoded: Encoded) -> Any:
            return model.apply(variables, encoded, head=search.head, decoding=search.decoding, method="search_in")

        self._variables, self._search = system.variables, search
        self._features, self._network, self._decoding = jax.jit(features), jax.jit(encoded), jax.jit(found_in)
        self._all = jax.jit(lambda variables, batch: search(variables, batch)[0])

    def texts(self, batch: Batch) -> list[str]:
        """Recognises a batch; returns the texts of the rows with a weight above 0."""
        return self._finished(self._all(self._variables, batch), batch)

    def timed_texts(self, batch: Batch) -> tuple[list[str], float]:
        """Returns the texts of a batch on the device, and the seconds until the device had found their labels."""
        begun = time.perf_counter()
        found = jax.block_until_ready(self._all(self._variables, batch))
        network_s = time.perf_counter() - begun
        return self._finished(found, batch), network_s

    def _finished(self, found: Any, batch: Batch) -> list[str]:
        lists = self._search.sequences(found, np.flatnonzero(np.asarray(batch.weights) > 0).tolist())
        return [self._search.transcript(hypotheses).text for hypotheses in lists]

    def times(self, batch: Batch, *, warm_ups: int, steps: int) -> Times:
        """Measures the single program (`all`) and each of PARTS, from audio in host memory to texts in host memory.

        The host waits after each part; `all` can therefore take less than their sum.
        """
        times: Times = {name: [] for name in ("all", *PARTS)}
        for step in range(-warm_ups, steps):
            keep = times if step >= 0 else {name: [] for name in times}
            with _timed(keep["all"]):
                self.texts(batch)
            with _timed(keep["features"]):
                frames = jax.block_until_ready(self._features(self._variables, batch))
            ready = batch.replace(audio=None, features=frames.values, lengths=frames.lengths)
            with _timed(keep["network"]):
                encoded = jax.block_until_ready(self._network(self._variables, ready))
            with _timed(keep["decoding"]):
                self._finished(self._decoding(self._variables, encoded), batch)
        return times


def summary(times: list[float]) -> dict[str, float]:
    """Mean and percentiles (50, 90, 95, 99 %) of times in seconds, converted to milliseconds."""
    ms = 1000 * np.asarray(times)
    return {"mean": float(ms.mean())} | {f"{p}%": float(np.percentile(ms, p)) for p in (50, 90, 95, 99)}


def recognise_set(
    recognition: TimedRecognition, data: PlannedData, *, warm_ups: int, repeats: int, workers: int, threads: int
) -> dict[str, Any]:
    """Measures recognition of a set from files to texts, several times, and then reading alone, once.

    Each batch is measured from the end of the previous one: `data` until it is on the device, `network` until the
    device has found the labels, and `both` together. Texts follow and are part of `seconds` only. Batches are read in
    advance, so `data` is short unless reading is slower than recognition.

    Args:
        workers: Number of processes that read; 0: threads only.

    Returns:
        Figures of the set. `ms` has the mean and percentiles of the parts, `seconds` is that of all repeats, and
        `waiting_s` the part of it that is `data`. `rejected` has a line for each utterance that cannot be read.
    """
    source, plan, scale = BatchSource(data.index, data.plan), data.plan, data.index.scale
    num = plan.batches_per_epoch
    for position in {plan[p].bucket: p for p in range(num)}.values():  # compiles the program of each shape
        recognition.texts(_on_device(source[position].batch))
    times: Times = {name: [] for name in ("data", "network", "both")}
    utterances, audio_s, padded_s, characters = 0, 0.0, 0.0, 0
    rejected = {each.line: None for each in data.rejections.entries}
    with open_batches(source, stop=(warm_ups + repeats) * num, workers=workers, threads=threads) as batches:
        for _ in range(warm_ups * num):
            recognition.texts(_on_device(next(batches).batch))
        begun = time.perf_counter()
        for _ in range(repeats * num):
            waited = time.perf_counter()
            loaded = next(batches)
            batch = loaded.batch
            on_device = _on_device(batch)
            data_s = time.perf_counter() - waited
            texts, network_s = recognition.timed_texts(on_device)
            for name, seconds in (("data", data_s), ("network", network_s), ("both", data_s + network_s)):
                times[name].append(seconds)
            read = np.asarray(batch.weights) > 0
            utterances += int(read.sum())
            audio_s += float(batch.lengths[read].sum()) / scale.per_s
            padded_s += batch.signal.shape[0] * batch.signal.shape[1] / scale.per_s
            characters += sum(map(len, texts))
            rejected |= {each.line: None for each in loaded.rejected}
        seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    with open_batches(source, stop=num, workers=workers, threads=threads) as batches:
        for _ in batches:
            pass
    reading_s, waiting_s = time.perf_counter() - begun, sum(times["data"])
    return {
        "utterances": utterances // repeats,
        "audio_s": audio_s / repeats,
        "padding_share": 1 - audio_s / padded_s,
        "seconds": seconds,
        "rtfx": audio_s / seconds,
        "waiting_s": waiting_s,
        "waiting_share": waiting_s / seconds,
        "reading_alone_s": reading_s,
        "reading_alone_rtfx": audio_s / repeats / reading_s,
        "characters": characters // repeats,
        "batches": num,
        "warm_ups": warm_ups,
        "repeats": repeats,
        "ms": {name: summary(each) for name, each in times.items()},
        "workers": workers,
        "threads": threads,
        "rejected": list(rejected),
    }


def _on_device(batch: Batch) -> Batch:
    """Copies a batch without its labels to the device, and waits for the copy."""
    copied: Batch = jax.block_until_ready(jax.device_put(without_labels(batch), local_devices()[0]))
    return copied


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begun)
