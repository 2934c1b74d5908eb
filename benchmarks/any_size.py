"""Time and memory of plans by the number of records: `python benchmarks/any_size.py [--json OUT] [--plot OUT.png]`.

Two measurements, each in new processes:

- Manifests of 1 and 10 million records, as JSONL and Parquet: the first start, which builds the index, and later starts
  from it, up to the rows of the batches at some positions. The audio files do not exist.
- Plans of up to 100 million records with generated lengths: the plan's own structures without manifests.

Figures of other sizes and formats that the JSON already has are kept. `--only plot` draws an existing one. CPU seconds
are those of the process: other work on the machine changes them less than the time of the clock.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asr_jax.audio.features import KaldiFbank
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Entries, make_buckets
from asr_jax.data.batching.dataset import Data, check_labels, plan_training
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.removals import count_removed
from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.observe.tables import print_table
from asr_jax.text.characters import CharacterTokenizer
from benchmarks import made_up

SETTINGS = Batching.planned(num_buckets=12, seconds=1600.0)
FRONT_END = KaldiFbank()
SCALE = scale_of(FRONT_END, of_features=False)
SIMULATED = (100_000, 316_000, 1_000_000, 3_160_000, 10_000_000, 31_600_000, 100_000_000)
POSITIONS = (0, 9_999_999, 123_456_789)
"""Positions of batches that are tried; 10 million records have about 77,000 batches per epoch."""
BLOCK = 1 << 17
FORMATS = ("jsonl", "parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("manifests", "simulated", "plot"))
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--formats", choices=FORMATS, nargs="+", default=FORMATS)
    parser.add_argument("--simulated", type=int, nargs="+", default=SIMULATED)
    parser.add_argument("--json", type=Path, default=Path("any_size.json"))
    parser.add_argument("--plot", type=Path, default=Path("any_size.png"))
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}
    if given.only in (None, "manifests"):
        new = [from_manifest(num, form) for num in given.records for form in given.formats]
        sizes = [(each["records"], each["format"]) for each in new]
        kept = [each for each in found.get("manifests", []) if (each["records"], each["format"]) not in sizes]
        found["manifests"] = sorted(kept + new, key=lambda each: (each["records"], each["format"]))
    if given.only in (None, "simulated"):
        found["simulated"] = [in_process(simulated, num) for num in given.simulated]
        found["slopes"] = slopes(found["simulated"])
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    print_table(found.get("simulated", []), title="plans by size")
    if "simulated" in found:
        draw(found, given.plot)


def simulated(num: int) -> dict[str, Any]:
    """Seconds and bytes of a plan of `num` records."""
    lengths = made_up.lengths(num)
    labels = made_up.num_labels(lengths)
    made = Timed()
    base = begin()
    with made("plan"):
        entries = Entries(lengths, labels, SCALE)
        plan = BatchPlan(entries, make_buckets(entries, SETTINGS))
    with made("far"):
        plan[1000 * plan.batches_per_epoch + plan.batches_per_epoch // 3]
    with made("next"):
        plan[1000 * plan.batches_per_epoch + plan.batches_per_epoch // 3 + 1]
    own = (resident() - base + lengths.nbytes + labels.nbytes) / num
    peak = (resident("VmHWM") - resident("RssFile") - base + lengths.nbytes + labels.nbytes) / num
    return {"records": num, "batches": plan.batches_per_epoch, "bytes": own, "peak_bytes": peak} | made.seconds


def from_manifest(num: int, form: str) -> dict[str, Any]:
    """Seconds of the first start with a manifest, and of a second and a third one from its index."""
    with tempfile.TemporaryDirectory() as folder:
        manifest, cache = Path(folder) / f"train.{form}", Path(folder) / "cache"
        in_process(write, manifest, num)
        size = manifest.stat().st_size
        first, second, third = (in_process(start, str(manifest), str(cache)) for _ in range(3))
        on_disk = sum(path.stat().st_size for path in cache.rglob("*.npy")) / num
    assert first["rows"] == second["rows"] == third["rows"], "the batches of a later start differ"
    starts = {"first": first, "second": second, "third": third}
    return {"records": num, "format": form, "manifest_bytes": size / num, "cache_bytes": on_disk} | starts


def start(manifest: str, cache: str) -> dict[str, Any]:
    """Prepares the training set as a run does before its first batch; then the rows of batches at POSITIONS."""
    tokenizer = CharacterTokenizer.train((), alphabet=f"{made_up.LETTERS} ", normaliser="none")
    made, before, base = Timed(), resident("RssFile"), begin()
    with made("read"):
        utterances = read_utterances([manifest], cache=cache)
    with made("plan"):
        data = plan_training(
            utterances, Data(train=(manifest,), buckets=SETTINGS), tokenizer=tokenizer, output_length=output_length,
            frames_needed=np.add, front_end=FRONT_END, seed=0,
        )  # fmt: skip
    with made("fingerprint"):
        fingerprint = data.fingerprint()
    with made("checks of texts"):
        check_labels(data, tokenizer)
        count_removed(utterances, tokenizer)
        count_round_trip(utterances, tokenizer, labels=data.index.labels)
    rows = []
    for position in POSITIONS:
        with made(f"position {position:,}"):
            rows.append(int(data.plan[position].rows.sum()))
    num = len(utterances)
    memory = {
        "own_bytes": (resident() - base) / num, "mapped_bytes": (resident("RssFile") - before) / num,
        "peak_bytes": (resident("VmHWM") - resident("RssFile") - base) / num,
    }  # fmt: skip
    return made.seconds | memory | {"rows": [fingerprint, *rows]}


def output_length(lengths: Any, *, of_features: bool) -> Any:
    return FRONT_END.output_length(lengths)


def write(path: Path, num: int) -> None:
    """Writes a manifest, a block of records at a time. Durations repeat after a block, and ids do not."""
    lines = list(made_up.utterances(min(num, BLOCK)))
    with path.open("w", encoding="utf-8") as file:
        writer = None
        for block, first in enumerate(range(0, num, BLOCK)):
            some = [
                line | {name: f"{line[name]}-{block}" for name in ("id", "audio_path")} for line in lines[: num - first]
            ]
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(line) + "\n" for line in some)
                continue
            table = pa.Table.from_pylist(some)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()


class Timed:
    """Seconds by the clock, and of the process under `NAME cpu`, for each block."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] = round(time.perf_counter() - clock, 4)
        self.seconds[f"{name} cpu"] = round(time.process_time() - cpu, 4)


def begin() -> int:
    """Returns freed memory to the system and forgets its peak; returns the resident bytes of this process."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return resident()


def resident(kind: str = "RssAnon") -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return int(fields[kind].split()[0]) * 1024


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(work, *arguments).result()
    if found:
        print(json.dumps(found), flush=True)
    return found


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponents p of time ~ size^p, fitted from a million records on."""
    large = [row for row in rows if row["records"] >= 1_000_000]
    sizes = np.log([row["records"] for row in large])
    return {
        name: round(float(np.polyfit(sizes, np.log([row[name] * scale(row, name) for row in large]), 1)[0]), 3)
        for name in ("plan cpu", "far cpu", "bytes", "peak_bytes")
    }  # fmt: skip


def scale(row: dict[str, Any], name: str) -> int:
    """Bytes are per record."""
    return row["records"] if name.endswith("bytes") else 1


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, slope = found["simulated"], found["slopes"]
    sizes = [row["records"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, what in (("plan cpu", "buckets and plan"), ("far cpu", "a batch of a distant epoch")):
        left.loglog(sizes, [row[name] for row in rows], "o-", label=f"{what} (slope {slope[name]:.2f})")
    left.loglog(sizes, [max(row["next cpu"], 1e-5) for row in rows], "o-", label="the batch after it")
    left.set(xlabel="records", ylabel="CPU seconds, one core", title="time")
    for name, what in (("bytes", "plan, resident"), ("peak_bytes", "while it is built")):
        right.loglog(
            sizes, [row[name] * row["records"] / 1e6 for row in rows], "o-", label=f"{what} (slope {slope[name]:.2f})"
        )
    right.set(xlabel="records", ylabel="MB", title="memory")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
