"""Benchmark of reading data: `python -m asr_jax.benchmark data --data MANIFEST …`.

reading: throughput from audio files to batches, with threads and with worker processes, compared with plain
soundfile.read in the same number of processes. memory: growth of memory over 1,000 batches. Absolute figures depend on
the machine and its load; ratios within one run are more reliable.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import PositiveFloat, PositiveInt, command_options

Row = dict[str, Any]


Part = Literal["reading", "memory"]


@command_options
class DataOptions:
    """Options of `asr_jax.benchmark data`."""

    data: Annotated[tuple[UserPath, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests of audio to read."""
    only: tuple[Part, ...] = ()
    """Parts to measure. Default: all."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write all figures to, in JSON."""
    processes: PositiveInt = os.cpu_count() or 1
    """Number of threads and of processes that read. Default: the number of cores."""
    seconds: PositiveFloat = 2.0
    """Duration of each measurement of reading in seconds."""
    repeats: PositiveInt = 9
    """Number of repetitions of each measurement of reading."""
    batch_seconds: PositiveFloat = 240.0
    """Size of a batch in seconds of audio with padding."""
    batches: PositiveInt = 1000
    """Number of batches over which the growth of memory is measured."""


def main(arguments: Sequence[str]) -> None:
    options = parse(DataOptions, arguments, prog="python -m asr_jax.benchmark data", about=__doc__)
    if not options.data:
        raise UserError("no manifest is given: expected --data MANIFEST")
    check_writable(options.json)

    from asr_jax.observe.tables import print_table

    figures: dict[str, Any] = {"machine": _machine()}
    for name in options.only or PARTS:
        load = _load()
        figures[name], rows = PARTS[name](options)
        figures["machine"]["load"][name] = [load, _load()]
        print_table(rows, title=name)
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1) + "\n")


def _reading(options: DataOptions) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.loading import index_of, throughput

    found = throughput(
        index_of(options.data),
        batch_seconds=options.batch_seconds,
        processes=options.processes,
        seconds=options.seconds,
        repeats=options.repeats,
    )
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


PARTS: dict[Part, Callable[[DataOptions], tuple[Any, list[Row]]]] = {"reading": _reading, "memory": _memory}


def _machine() -> dict[str, Any]:
    """Description of the machine; `load` is filled with the load average before and after each part."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system(), "load": {}}


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
