"""Published figures of other systems, for context: models and hardware differ, so the figures are not comparable.

published.json contains the figures; each table has its system, hardware, software, precision and source. NVIDIA's table
of the training of QuartzNet swaps the columns of full and mixed precision, as its speed-ups and commands show; this is
corrected here. Audio seconds per second of training are derived from mean durations of 12.69 s (train-clean-100) or
12.3 s (LibriSpeech), 14.3 letters per second, and masked frames that are 49 % of 50 frames per second.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.observe.tables import print_table

Row = dict[str, Any]


@functools.cache
def published() -> dict[str, Any]:
    """Contents of published.json."""
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
    return found


def latencies(measured: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Mean milliseconds per batch by rows and seconds, as measured by `inference` and as published for QuartzNet."""
    ours = {
        f"here, {part}": {(each["batch"], each["seconds"]): each["ms"][part]["mean"] for each in measured}
        for part in ("all", "network")
    }
    grid = [table for table in published()["inference"]["tables"] if table["system"].startswith("QuartzNet")]
    theirs = {_name(table): {(row[0], row[1]): row[2] for row in table["rows"]} for table in grid}
    columns = ours | theirs
    points = sorted({point for column in columns.values() for point in column}, key=lambda at: (at[1], at[0]))
    return [
        {"batch": rows, "seconds": seconds} | {name: column.get((rows, seconds)) for name, column in columns.items()}
        for rows, seconds in points
    ]


def other_latencies() -> list[Row]:
    """Published latencies for batches of LibriSpeech's test-other, which has a mean duration of 6.54 s."""
    names = published()["inference"]["columns"]
    return [
        {"system": table["system"], "on": _name(table)} | dict(zip(names, row, strict=True))
        | {"× real time": row[0] * row[1] / row[2] * 1000}
        for table in published()["inference"]["tables"] if not table["system"].startswith("QuartzNet")
        for row in table["rows"]
    ]  # fmt: skip


def set_rates(ours: Sequence[tuple[str, str, float, str]]) -> list[Row]:
    """Throughput of whole sets as a multiple of real time, measured and published, the fastest first.

    Args:
        ours: System, hardware, throughput and description of each measured set.
    """
    theirs = published()["sets"]
    rows = [
        *({"system": name, "hardware": on, "× real time": rate, "how": how, "source": "here"}
          for name, on, rate, how in ours),
        *({"system": each["system"], "hardware": each["hardware"], "× real time": float(each["rtfx"]),
           "how": each["how"], "source": each["source"]} for each in theirs),
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["× real time"])


def training_rates() -> list[Row]:
    """Published throughput of training, and the derived seconds of audio per second."""
    rows = []
    for table in published()["training"]["tables"]:
        for devices, batch, accumulation, rate in table["rows"]:
            audio = rate * table["audio_s_per_unit"]
            rows.append(
                {
                    "system": table["system"],
                    "hardware": f"{devices} × {table['hardware']}",
                    "precision": table["precision"],
                    "software": table["software"],
                    "rows/device": batch,
                    "accumulation": accumulation,
                    "published per second": f"{rate:,.7g} {table['unit']}",
                    "audio-s/s": audio,
                    "/device": audio / devices,
                }
            )
    return rows


def print_latencies(measured: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        latencies(measured),
        title="with NVIDIA's QuartzNet 15x5, mean ms of a batch padded to the duration, 500 steps, PyTorch 21.07",
    )


def print_set_latencies(measured: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Prints the latencies of sets, reading and network together, before the published ones.

    Args:
        measured: System, hardware and figures of each set and batch size.
    """
    ours = [
        {
            "system": name, "on": on, "batch": each["batch"], "seconds": each["audio_s"] / each["utterances"],
            "mean_ms": each["ms"]["both"]["mean"], **{f"{p}_ms": each["ms"]["both"][f"{p}%"] for p in (90, 95, 99)},
            "× real time": each["rtfx"],
        }
        for name, on, each in measured if each["utterances"]
    ]  # fmt: skip
    print_table(ours + other_latencies(), title="with NVIDIA's wav2vec 2.0 Base on test-other, mean duration 6.54 s")


def print_training() -> None:
    print_table(
        training_rates(), title="published; audio-s/s is derived from mean lengths, see cli/benchmark/published.py"
    )


def _name(table: Mapping[str, Any]) -> str:
    return f"{table['hardware']}, {table['precision']}"
