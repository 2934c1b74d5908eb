"""How fast and how well data are read, planned and held: `python -m asr_jax.benchmark data [--data MANIFEST …]`.

reading: files of audio to ready batches, by threads and by worker processes, against bare soundfile.read in as many
processes of the same run. memory: its growth over 1,000 batches. padding, start, resume: of made-up metadata like
LibriSpeech's. Figures are of one machine at one time; ratios of one run say more.
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
    """Audio to read; without it, reading and memory are not measured."""
    only: tuple[Part, ...] = ()
    """Parts to measure. Default: all."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write all figures to."""
    processes: int = os.cpu_count() or 1
    """Number of processes that read."""
    seconds: float = 2.0
    """Seconds of each measurement."""
    repeats: int = 9
    """Repeats of each measurement."""
    batch_seconds: float = 240.0
    """Audio of a batch that is read."""
    batches: int = 1000
    """Number of batches over which the growth of memory is measured."""
    utterances: Annotated[int, arg(aliases=["--records"])] = 1_000_000
    """Number of made-up utterances for a start."""
    far_utterances: Annotated[int, arg(aliases=["--far-records"])] = 10_000_000
    """Number of made-up utterances to resume in."""


def main(arguments: Sequence[str]) -> None:
    options = parse(DataOptions, arguments, prog="python -m asr_jax.benchmark data", about=__doc__)
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


def _reading(options: DataOptions) -> tuple[Any, list[Row]]:
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
    rows[-1]["goal"] = "≤ 5 at the second"
    rows += [{"what": f"bytes an utterance: {what}", "second": size} for what, size in found["bytes"].items()]
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
            ("far_s", "the first batch at a far place"),
            ("next_s", "the next one"),
        )
    ]
    return found, rows


PARTS: dict[Part, Callable[[DataOptions], tuple[Any, list[Row]]]] = {
    "reading": _reading, "memory": _memory, "padding": _padding, "start": _starting, "resume": _resuming,
}  # fmt: skip


def _machine() -> dict[str, Any]:
    """What it is, and by part its load before and after, which is 0 where nobody else works."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system(), "load": {}}


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
