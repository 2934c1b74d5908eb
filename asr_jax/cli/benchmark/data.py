"""How fast and how well data are read, planned and held: `python -m asr_jax.benchmark data [--data MANIFEST …]`.

reading: files of audio to ready batches, by threads and by worker processes, against bare soundfile.read in as many
processes of the same run. memory: its growth over 1,000 batches. padding, start, resume: of made-up metadata like
LibriSpeech's. Figures are of one machine at one time; ratios of one run say more.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.benchmark data", description=__doc__)
    parser.add_argument("--data", nargs="+", default=[], metavar="MANIFEST", help="audio to read; without it, none is")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures here")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that read (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (%(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="of each measurement (%(default)s)")
    parser.add_argument("--batch-seconds", type=float, default=240.0, help="audio of a batch read (%(default)s)")
    parser.add_argument("--batches", type=int, default=1000, help="over which memory may grow (%(default)s)")
    parser.add_argument("--records", type=int, default=1_000_000, help="made up for a start (%(default)s)")
    parser.add_argument("--far-records", type=int, default=10_000_000, help="made up to resume in (%(default)s)")
    options = parser.parse_args(arguments)
    names = options.only or [name for name in PARTS if options.data or name not in ("reading", "memory")]
    if not options.data and {"reading", "memory"} & set(names):
        raise UserError("reading and memory need audio: give --data MANIFEST")
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


def _reading(options: Any) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.loading import index_of, throughput

    found = throughput(
        index_of(options.data), batch_seconds=options.batch_seconds, processes=options.processes,
        seconds=options.seconds, repeats=options.repeats,
    )  # fmt: skip
    names = {
        "bare": f"bare soundfile.read, {options.processes} processes",
        "threads": f"batches, {options.processes} threads",
        "workers": f"batches, {options.processes} workers",
    }
    wall, cpu = found["per_s"], found["per_cpu_s"]
    rows = [
        {
            "what": what,
            "audio s per s": wall["median"][name],
            "of bare": wall["to_bare"][name],
            "goal": None if name == "bare" else "≥ 0.7",
            "per s of a core": cpu["median"][name],
            "of bare, by core": cpu["to_bare"].get(name),
        }
        for name, what in names.items()
    ]
    return found, rows


def _memory(options: Any) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.loading import index_of, memory_growth, source_of

    source = source_of(index_of(options.data), batch_seconds=options.batch_seconds / 4)
    found = [memory_growth(source, workers=workers, num_batches=options.batches) for workers in (0, options.processes)]
    return found, [row | {"growth": f"{row['growth']:+.2%}", "goal": "< 1 %"} for row in found]


def _padding(options: Any) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import padding

    found = padding(min(options.records, 281_241), batch_seconds=1600.0)
    rows = [{"shapes": row["shapes"], "efficiency": f"{row['efficiency']:.1%}"} for row in found]
    return found, [row | ({"goal": "≥ 95 %"} if row["shapes"] == 12 else {}) for row in rows]


def _starting(options: Any) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import starts

    found = starts(options.records)
    rows = [
        {"what": f"seconds: {part}", "first": found["first_s"][part], "second": second}
        for part, second in found["second_s"].items()
    ]
    rows[-1]["goal"] = "≤ 5 at the second"
    rows += [{"what": f"bytes a record: {what}", "second": size} for what, size in found["bytes"].items()]
    rows[-1]["goal"] = "≤ 200"
    return found, rows


def _resuming(options: Any) -> tuple[Any, list[Row]]:
    from asr_jax.cli.benchmark.planning import resume

    found = resume(options.far_records)
    goals = {"far_s": "< 1"}
    rows = [
        {"what": what, "seconds": found[name], "goal": goals.get(name)}
        for name, what in (
            ("build_s", f"buckets and plan of {options.far_records:,} records"),
            ("far_s", "the first batch at a far place"),
            ("next_s", "the next one"),
        )
    ]
    return found, rows


PARTS: dict[str, Callable[[Any], tuple[Any, list[Row]]]] = {
    "reading": _reading, "memory": _memory, "padding": _padding, "start": _starting, "resume": _resuming,
}  # fmt: skip


def _machine() -> dict[str, Any]:
    """What it is, and by part its load before and after, which is 0 where nobody else works."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system(), "load": {}}


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
