"""Planning of synthetic metadata like LibriSpeech's: `python -m benchmarks.planning [--utterances N] [--json OUT]`.

Prints the share of audio in the batches by the number of shapes, the seconds and bytes of a first and a second start,
and the seconds of resuming in a distant epoch.
"""

import argparse
import json
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
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Entries, make_buckets
from asr_jax.data.batching.index import build_index, scale_of
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.text.characters import CharacterTokenizer
from benchmarks import made_up

SCALE = scale_of(KaldiFbank(), of_features=False)
SETTINGS = Batching.planned(num_buckets=12, seconds=1600.0)


def padding(num: int, *, nums_buckets: tuple[int, ...] = (4, 8, 12, 16), batch_seconds: float) -> list[dict[str, Any]]:
    """Share of audio in the batches, by the number of buckets.

    Args:
        num: Number of utterances.
        nums_buckets: Numbers of buckets to compare.
        batch_seconds: Size of a batch in seconds of audio with padding.

    Returns:
        For each number of buckets the number of distinct shapes and the share.
    """
    samples = made_up.lengths(num)
    labels = made_up.num_labels(samples)
    rows = []
    for num_buckets in nums_buckets:
        settings = Batching.planned(num_buckets=num_buckets, seconds=batch_seconds)
        entries = Entries(samples, labels, SCALE)
        plan = BatchPlan(entries, make_buckets(entries, settings))
        shapes = {(bucket.batch_size, bucket.length, bucket.num_tokens) for bucket in plan.buckets}
        rows.append({"shapes": len(shapes), "efficiency": 1 - plan.padding_share})
    return rows


def resume(num: int, *, repeats: int = 3) -> dict[str, float]:
    """Seconds to build a plan, and to find a batch of a distant epoch and the batch after it; medians."""
    samples = made_up.lengths(num)
    labels = made_up.num_labels(samples)
    build, far, next_one = list[float](), list[float](), list[float]()
    for repeat in range(repeats):
        with _timed(build):
            entries = Entries(samples, labels, SCALE)
            plan = BatchPlan(entries, make_buckets(entries, SETTINGS))
        position = (1000 + 10 * repeat) * plan.batches_per_epoch + plan.batches_per_epoch // 3
        with _timed(far):
            plan[position]
        with _timed(next_one):
            plan[position + 1]
    medians = {"build_s": build, "far_s": far, "next_s": next_one}
    return {"utterances": num} | {name: float(np.median(seconds)) for name, seconds in medians.items()}


def starts(num: int) -> dict[str, Any]:
    """Measures the first and the second start of a run on a manifest, each in its own process.

    Returns:
        Seconds of each part of both starts, and bytes per utterance on disk and in memory at the second start.
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
    """Reads and plans the training set like a run before its first batch; returns seconds by part and memory."""
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
    entries = index.entries()
    done("labels and filters")
    plan = BatchPlan(entries, make_buckets(entries, SETTINGS))
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
    """Resident bytes of this process: anonymous memory and mapped files; zeros without /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) * 1024, int(fields["RssFile"].split()[0]) * 1024


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=1_000_000, help="utterances of the start of a run")
    parser.add_argument("--far-utterances", type=int, default=10_000_000, help="utterances for resuming")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    given = parser.parse_args()
    figures = {
        "padding": padding(min(given.utterances, 281_241), batch_seconds=1600.0),
        "start": starts(given.utterances),
        "resume": resume(given.far_utterances),
    }
    print(json.dumps(figures, indent=1))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
