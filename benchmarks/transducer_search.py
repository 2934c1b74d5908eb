"""Compares searches of a transducer on the device with Python loops of jitted steps:
`python benchmarks/transducer_search.py [--json OUT]`.

The head is that of CAIMAN-ASR's base model (joint network 768, LSTM 2 × 512, 8,703 labels and the blank) with random
weights, and a bias of the blank with which every fifth frame has a label. Frames have at most one label: with random
weights, a label would be followed by others of its frame. The loops decide for one utterance after the other, as those
of CAIMAN-ASR and icefall do (`one by one`), or for all rows of the batch at a time (`rows together`). Times are medians
of wall-clock seconds and of processor seconds; the second ones depend less on the load of the machine.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.transducer import Transducer, TransducerHead
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.text.spelling import Spelling

LABELS, DIM, WIDTH = 8703, 1024, 4
LABELS_PER_FRAME = 0.2
MAX_SYMBOLS = 1
Step = Callable[..., Any]


class Networks:
    """The head with random weights, and its jitted single steps."""

    def __init__(self, seed: int = 0) -> None:
        self.head: TransducerHead = Transducer().build(vocab_size=LABELS + 1, blank_id=LABELS, dtype=jnp.float32)
        one = jnp.ones(1, jnp.int32)
        batch = Batch(None, jnp.zeros((1, 1, DIM)), one, one[None], one, jnp.ones(1), one)
        encoded = Encoded(Frames(batch.signal, one))
        params = jax.jit(lambda key: self.head.init(key, encoded, batch, step=None))(jax.random.key(seed))["params"]
        flat = flatten(params)
        for name in flat:
            if "lstm" in name:
                flat[name] = 4 * flat[name]  # outputs depend on labels
        self.params = unflatten(flat)
        self._begin = jax.jit(
            lambda params, rows: self.head.apply({"params": params}, rows, method="begin"), static_argnums=1
        )
        self._set_blank()

        def logits(params: Any, frames: Array, predicted: Any) -> Any:
            given = frames[:, None], predicted["projected"][:, None]
            return self.head.apply({"params": params}, *given, method="logits")

        def decide(params: Any, projected: Array, place: Array, predicted: Any) -> Array:
            return jnp.argmax(logits(params, projected[:, place], predicted)[:, 0], axis=-1)

        def best(params: Any, projected: Array, place: Array, predicted: Any, scores: Array) -> Any:
            frames = jnp.repeat(projected[:, place], WIDTH, axis=0)
            found = jax.nn.log_softmax(logits(params, frames, predicted)[:, 0]) + scores[:, None]
            return jax.lax.top_k(found.reshape(-1), WIDTH)

        def advance(params: Any, predicted: Any, labels: Array, is_new: Array, sources: Array | None = None) -> Any:
            if sources is not None:
                predicted = jax.tree.map(lambda each: each[sources], predicted)
            after: Any = self.head.apply({"params": params}, predicted, labels, method="advance")
            return jax.tree.map(
                lambda new, old: jnp.where(is_new.reshape(-1, *(1,) * (new.ndim - 1)), new, old), after, predicted
            )

        self.decide, self.best, self.advance = jax.jit(decide), jax.jit(best), jax.jit(advance)
        self.project = jax.jit(lambda params, x: x @ params["of_frames"]["kernel"] + params["of_frames"]["bias"])

    def begin(self, rows: int) -> Any:
        return self._begin(self.params, rows)

    def _set_blank(self) -> None:
        """Sets the bias of the blank such that the share of labels is right."""
        apply = jax.jit(lambda params, *given, method: self.head.apply({"params": params}, *given, method=method),
                        static_argnames="method")  # fmt: skip
        random = np.random.default_rng(1)
        predicted = self.begin(256)
        for _ in range(3):
            predicted = apply(self.params, predicted, jnp.asarray(random.integers(0, LABELS, 256)), method="advance")
        frames = frames_of(256, 1, seed=2)[:, 0]
        projected = frames @ self.params["of_frames"]["kernel"] + self.params["of_frames"]["bias"]
        logits = apply(self.params, projected[:, None], predicted["projected"][:, None], method="logits")[:, 0]
        lead = np.asarray(logits[:, :LABELS].max(-1) - logits[:, LABELS])
        bias = self.params["output"]["bias"]
        self.params["output"]["bias"] = bias.at[LABELS].add(float(np.quantile(lead, 1 - LABELS_PER_FRAME)))


def frames_of(rows: int, num_frames: int, *, seed: int = 0) -> Array:
    """Random outputs of an encoder `[B T D]`."""
    return 2 * jax.random.normal(jax.random.key(seed), (rows, num_frames, DIM))


def one_by_one(networks: Networks, frames: Array, num_frames: int) -> list[list[int]]:
    """Greedy search in the first frames of one utterance after the other."""
    found, yes = [], np.ones(1, bool)
    for row in range(len(frames)):
        projected, predicted, labels = networks.project(networks.params, frames[row : row + 1]), networks.begin(1), []
        for place in range(num_frames):
            for _ in range(MAX_SYMBOLS):
                label = int(networks.decide(networks.params, projected, place, predicted)[0])
                if label == LABELS:
                    break
                labels.append(label)
                predicted = networks.advance(networks.params, predicted, np.array([label]), yes)
        found.append(labels)
    return found


def rows_together(networks: Networks, frames: Array, num_frames: int) -> list[list[int]]:
    """Greedy search in the first frames of all rows, frame by frame."""
    projected, predicted = networks.project(networks.params, frames), networks.begin(len(frames))
    found: list[list[int]] = [[] for _ in range(len(frames))]
    for place in range(num_frames):
        is_going = np.ones(len(frames), bool)
        for _ in range(MAX_SYMBOLS):
            labels = np.asarray(networks.decide(networks.params, projected, place, predicted))
            is_going &= labels != LABELS
            if not is_going.any():
                break
            for row in np.flatnonzero(is_going):
                found[row].append(int(labels[row]))
            predicted = networks.advance(networks.params, predicted, np.minimum(labels, LABELS - 1), is_going)
    return found


def beam_one_by_one(networks: Networks, frames: Array, num_frames: int) -> list[list[int]]:
    """Beam search with at most one label per frame, in the first frames of one utterance after the other."""
    found = []
    for row in range(len(frames)):
        projected = networks.project(networks.params, frames[row : row + 1])
        beam: list[tuple[tuple[int, ...], float]] = [((), 0.0)] + [((), -math.inf)] * (WIDTH - 1)
        predicted = networks.begin(WIDTH)
        for place in range(num_frames):
            given = np.array([score for _, score in beam], np.float32)
            scores, index = jax.device_get(networks.best(networks.params, projected, place, predicted, given))
            merged: dict[tuple[int, ...], tuple[float, int, int]] = {}
            for score, each in zip(scores.tolist(), index.tolist(), strict=True):
                source, label = divmod(each, LABELS + 1)
                labels = beam[source][0] + ((label,) if label < LABELS else ())
                if labels in merged:
                    score, source, label = float(np.logaddexp(merged[labels][0], score)), *merged[labels][1:]
                merged[labels] = score, source, label
            rows = [*merged.items(), *[((), (-math.inf, 0, LABELS))] * (WIDTH - len(merged))]
            beam = [(labels, score) for labels, (score, _, _) in rows]
            sources, last = (np.array([each[number] for _, each in rows]) for number in (1, 2))
            predicted = networks.advance(
                networks.params, predicted, np.minimum(last, LABELS - 1), last < LABELS, sources
            )
        found.append(list(max(beam, key=lambda each: each[1] / (len(each[0]) + 1))[0]))
    return found


def seconds(call: Callable[[], Any], repeats: int) -> tuple[dict[str, float], Any]:
    """Median wall-clock and processor seconds of calls, and the result."""
    walls, cpus, result = [], [], None
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"s": statistics.median(walls), "cpu_s": statistics.median(cpus)}, result


def compare(networks: Networks, rows: int, num_frames: int, *, repeats: int, most_alone: int) -> dict[str, Any]:
    """Times of all searches for one batch.

    Args:
        networks: Head and steps.
        rows: Number of rows.
        num_frames: Number of frames of each row.
        repeats: Number of repeats of the searches on the device.
        most_alone: Largest number of rows that the loops over utterances compute; their times are multiplied.
    """
    frames, lengths = frames_of(rows, num_frames), jnp.full(rows, num_frames, jnp.int32)
    encoded, decoding = Encoded(Frames(frames, lengths)), TransducerDecoding(max_symbols=MAX_SYMBOLS)
    greedy = jax.jit(lambda p, e: networks.head.apply({"params": p}, e, decoding, method="search")[0])
    beam = TransducerDecoding(kind="beam")
    project = jax.jit(lambda p, e: networks.head.apply({"params": p}, e, beam, method="search")[0])
    spelling = Spelling.of_surfaces([f" {label}" for label in range(LABELS)] + [""], blank_id=LABELS)
    settings = TransducerSearch(beam_width=WIDTH)
    one, several = (TransducerBeamSearch(spelling, search=settings, max_symbols=most) for most in (1, 2))
    alone = frames[:most_alone]
    factor = rows / len(alone)

    def texts(search: TransducerBeamSearch) -> list[list[int]]:
        return [list(found[0].labels) for found in search(project(networks.params, encoded))]

    def of_greedy() -> list[list[int]]:
        found = jax.device_get(greedy(networks.params, encoded))
        return [list(found.sequences(row)[0].tokens) for row in range(rows)]

    calls: dict[str, tuple[Callable[[], Any], int, float]] = {
        "greedy, device": (of_greedy, repeats, 1.0),
        "greedy, rows together": (lambda: rows_together(networks, frames, num_frames), 1, 1.0),
        "greedy, one by one": (lambda: one_by_one(networks, alone, num_frames), 1, factor),
        "beam, one label, device": (lambda: texts(one), repeats, 1.0),
        "beam, one label, one by one": (lambda: beam_one_by_one(networks, alone, num_frames), 1, factor),
        "beam, two labels, device": (lambda: texts(several), repeats, 1.0),
    }
    found, took = {}, {}
    _warm(networks, frames)
    for name, (call, number, times) in calls.items():
        if "device" in name:
            call()  # compiles
        measured, found[name] = seconds(call, number)
        took[name] = {unit: value * times for unit, value in measured.items()}
    pairs = {
        "greedy": ("greedy, one by one", "greedy, device"),
        "greedy, of rows together": ("greedy, rows together", "greedy, device"),
        "beam": ("beam, one label, one by one", "beam, one label, device"),
    }
    num = len(alone)
    return {
        "rows": rows, "frames": num_frames, "rows_of_loops": num,
        "labels_per_frame": sum(map(len, found["greedy, device"])) / (rows * num_frames), "times": took,
        "equal_rows": {
            "greedy, of rows together": _equal(found["greedy, device"], found["greedy, rows together"]),
            "greedy": _equal(found["greedy, device"][:num], found["greedy, one by one"]),
            "beam": _equal(found["beam, one label, device"][:num], found["beam, one label, one by one"]),
        },
        "times_as_fast": {
            name: {unit: took[slow][unit] / took[fast][unit] for unit in ("s", "cpu_s")}
            for name, (slow, fast) in pairs.items()
        },
    }  # fmt: skip


def _equal(ours: list[list[int]], others: list[list[int]]) -> int:
    return sum(a == b for a, b in zip(ours, others, strict=True))


def _warm(networks: Networks, frames: Array) -> None:
    """Compiles the steps of the loops."""
    for call in (rows_together, one_by_one, beam_one_by_one):
        call(networks, frames if call is rows_together else frames[:1], 1)
    for rows in {1, len(frames)}:
        networks.advance(networks.params, networks.begin(rows), np.zeros(rows, np.int64), np.ones(rows, bool))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most-alone", type=int, default=32, help="rows of loops over utterances; others are as long")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    networks, load = Networks(), os.getloadavg()[0]
    batches = [
        compare(networks, rows, given.frames, repeats=given.repeats, most_alone=given.most_alone) for rows in given.rows
    ]
    result = {
        "device": jax.devices()[0].device_kind, "cores": os.cpu_count(), "load": [load, os.getloadavg()[0]],
        "head": {"labels": LABELS, "joint": 768, "lstm": [2, 512]}, "beam_width": WIDTH, "batches": batches,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
