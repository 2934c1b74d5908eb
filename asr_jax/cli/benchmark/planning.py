"""Figures of planning, on made-up metadata: padding, a second start, and resuming far away."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.features import KaldiFbank
from asr_jax.cli.benchmark import made_up
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import Buckets, make_buckets
from asr_jax.data.batching.index import build_index, scale_of
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.text.characters import CharacterTokenizer

SCALE = scale_of(KaldiFbank(), of_features=False)


def padding(num: int, *, nums_buckets: tuple[int, ...] = (4, 8, 12, 16), batch_seconds: float) -> list[dict[str, Any]]:
    """The share of batches that is audio, by the number of buckets."""
    samples = made_up.lengths(num)
    labels = made_up.num_labels(samples)
    rows = []
    for num_buckets in nums_buckets:
        settings = Buckets(num=num_buckets, batch_seconds=batch_seconds)
        buckets = make_buckets(samples, labels, settings, scale=SCALE)
        plan = BatchPlan(samples, labels, buckets)
        shapes = {(bucket.batch_size, bucket.length, bucket.num_tokens) for bucket in buckets}
        rows.append({"shapes": len(shapes), "efficiency": 1 - plan.padding_share})
    return rows


def resume(num: int, *, repeats: int = 3) -> dict[str, float]:
    """Seconds to build a plan and, on a built one, to find a batch of a far epoch."""
    samples = made_up.lengths(num)
    labels = made_up.num_labels(samples)
    build, far, next_one = list[float](), list[float](), list[float]()
    for repeat in range(repeats):
        with _timed(build):
            buckets = make_buckets(samples, labels, Buckets(num=12, batch_seconds=1600.0), scale=SCALE)
            plan = BatchPlan(samples, labels, buckets)
        position = (1000 + 10 * repeat) * plan.batches_per_epoch + plan.batches_per_epoch // 3
        with _timed(far):
            plan[position]
        with _timed(next_one):
            plan[position + 1]
    medians = {"build_s": build, "far_s": far, "next_s": next_one}
    return {"utterances": num} | {name: float(np.median(seconds)) for name, seconds in medians.items()}


def starts(num: int) -> dict[str, Any]:
    """The first and the second start of a run on a manifest: seconds of each part, each in a process of its own, and
    bytes per utterance on disk and resident at the second.
    """
    with tempfile.TemporaryDirectory() as folder:
        manifest, cache = Path(folder) / "manifests" / "train.jsonl", Path(folder) / "cache"
        manifest.parent.mkdir()
        made_up.write_manifest(manifest, num)
        first, second = (_in_process(_start, str(manifest), str(cache)) for _ in range(2))
        sizes = {path.relative_to(cache).name: path.stat().st_size / num for path in cache.rglob("*.npy")}
        of_texts, of_labels = (sum(sizes[f"{name}.{part}.npy"] for part in ("values", "offsets")) for name in _LARGE)
        others = sum(sizes.values()) - of_texts - of_labels
        return {
            "utterances": num,
            "first_s": first["seconds"],
            "second_s": second["seconds"],
            "bytes": {
                "texts on disk": of_texts,
                "labels on disk": of_labels,
                "ids, paths and all else on disk": others,
                "resident, of files": second["mapped"] / num,
                "resident, beside files": second["own"] / num,
                "in memory with ids and paths": second["own"] / num + others,
            },
        }


_LARGE = ("texts", "labels")


def _start(manifest: str, cache: str) -> dict[str, Any]:
    """All that a run does with its training set before the first batch."""
    tokenizer = CharacterTokenizer.train((), alphabet=f"{made_up.LETTERS} ", normaliser="none")
    front_end, seconds = KaldiFbank(), dict[str, float]()
    before = _resident()
    start = time.perf_counter()

    def done(part: str) -> None:
        seconds[part] = time.perf_counter() - start - sum(seconds.values())

    utterances = read_utterances([manifest], cache=cache)
    done("utterances")
    index, _ = build_index(
        utterances, scale=SCALE, tokenizer=tokenizer, output_length=front_end.output_length, frames_needed=np.add
    )
    num_labels = index.num_labels()
    done("labels and filters")
    buckets = make_buckets(index.lengths, num_labels, Buckets(num=12, batch_seconds=1600.0), scale=SCALE)
    plan = BatchPlan(index.lengths, num_labels, buckets)
    done("buckets and plan")
    _ = index.fingerprint(), plan.fingerprint()
    done("fingerprints")
    assert (plan[0].rows >= 0).any()
    done("first batch's rows")
    after = _resident()
    return {
        "seconds": seconds | {"in all": sum(seconds.values())},
        "own": after[0] - before[0],
        "mapped": after[1] - before[1],
    }


def _in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _resident() -> tuple[int, int]:
    """Bytes of this process in memory: its own, and of files; zeros where /proc is missing."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) * 1024, int(fields["RssFile"].split()[0]) * 1024


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)
