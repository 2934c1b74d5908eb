"""Benchmark of reading, planning and memory of data: `python -m asr_jax.benchmark data [--data MANIFEST …]`.

reading: throughput from audio files to batches, with threads and with worker processes, compared with plain
soundfile.read in the same number of processes. memory: growth of memory over 1,000 batches. padding, start, resume:
share of padding, duration of the start of a run, and duration of resuming, for synthetic metadata similar to
LibriSpeech's. Absolute figures depend on the machine and its load; ratios within one run are more reliable.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable
from asr_jax.core.options import parse

Row = dict[str, Any]


Part = Literal["reading", "memory", "padding", "start", "resume"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of `asr_jax.benchmark data`."""

    data: Annotated[tuple[str, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests of audio to read; without them, reading and memory are not measured."""
    only: tuple[Part, ...] = ()
    """Parts to measure. Default: all."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write all figures to, in JSON."""
    processes: int = os.cpu_count() or 1
    """Number of threads and of processes that read. Default: the number of cores."""
    seconds: float = 2.0
    """Duration of each measurement of reading in seconds."""
    repeats: int = 9
    """Number of repetitions of each measurement of reading."""
    batch_seconds: float = 240.0
    """Size of a batch in seconds of audio with padding."""
    batches: int = 1000
    """Number of batches over which the growth of memory is measured."""
    utterances: Annotated[int, arg(aliases=["--records"])] = 1_000_000
    """Number of synthetic utterances for the start of a run."""
    far_utterances: Annotated[int, arg(aliases=["--far-records"])] = 10_000_000
    """Number of synthetic utterances for resuming."""


def main(arguments: Sequence[str]) -> None:
    options = parse(DataOptions, arguments, prog="python -m asr_jax.benchmark data", about=__doc__)
    names = options.only or [name for name in PARTS if options.data or name not in ("reading", "memory")]
    if not options.data and {"reading", "memory"} & set(names):
        raise UserError("reading and memory need audio: expected --data MANIFEST")
    if options.json:
        check_writable(options.json)

    from asr_jax.observe.tables import print_table

    figures: dict[str, Any] = {"machine": _machine()}
    for name in names:
        load = _load()
        figures[name], rows = PARTS[name](options)
        figures["machine"]["load"][name] = [load, _load()]
        print_table(rows, title=name)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _reading(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.loading import index_of, throughput

    found = throughput(
        index_of(options.data), batch_seconds=options.batch_seconds, processes=options.processes,
        seconds=options.seconds, repeats=options.repeats,
    )  # fmt: skip
    names = {
        "bare": f"plain soundfile.read, {options.processes} processes",
        "threads": f"batches, {options.processes} threads",
        "workers": f"batches, {options.processes} workers",
    }
    wall, cpu = found["per_s"], found["per_cpu_s"]
    rows = [
        {
            "what": what,
            "audio s per s": wall["median"][name],
            "of plain": wall["to_bare"][name],
            "goal": None if name == "bare" else "≥ 0.7",
            "audio s per core s": cpu["median"][name],
            "of plain, per core": cpu["to_bare"].get(name),
        }
        for name, what in names.items()
    ]
    return found, rows


def _memory(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.loading import index_of, memory_growth, source_of

    source = source_of(index_of(options.data), batch_seconds=options.batch_seconds / 4)
    found = [memory_growth(source, workers=workers, num_batches=options.batches) for workers in (0, options.processes)]
    return found, [row | {"growth": f"{row['growth']:+.2%}", "goal": "< 1 %"} for row in found]


def _padding(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import padding

    found = padding(min(options.utterances, 281_241), batch_seconds=1600.0)
    rows = [{"shapes": row["shapes"], "efficiency": f"{row['efficiency']:.1%}"} for row in found]
    return found, [row | ({"goal": "≥ 95 %"} if row["shapes"] == 12 else {}) for row in rows]


def _starting(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import starts

    found = starts(options.utterances)
    rows = [
        {"what": f"seconds: {part}", "first": found["first_s"][part], "second": second}
        for part, second in found["second_s"].items()
    ]
    rows[-1]["goal"] = "second ≤ 5"
    rows += [{"what": f"bytes per utterance: {what}", "second": size} for what, size in found["bytes"].items()]
    rows[-1]["goal"] = "≤ 200"
    return found, rows


def _resuming(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import resume

    found = resume(options.far_utterances)
    goals = {"far_s": "< 1"}
    rows = [
        {"what": what, "seconds": found[name], "goal": goals.get(name)}
        for name, what in (
            ("build_s", f"buckets and plan of {options.far_utterances:,} utterances"),
            ("far_s", "the first batch of a distant epoch"),
            ("next_s", "the next one"),
        )
    ]
    return found, rows


PARTS: dict[Part, Callable[[DataOptions], tuple[Any, list[Row]]]] = {
    "reading": _reading, "memory": _memory, "padding": _padding, "start": _starting, "resume": _resuming,
}  # fmt: skip


def _machine() -> dict[str, Any]:
    """Description of the machine; `load` is filled with the load average before and after each part."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system(), "load": {}}


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
