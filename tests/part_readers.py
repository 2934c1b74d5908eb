"""Manifests of every format with the same rows of fields, to test that all readers find the same parts."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
from array_record_files import example, write_records

from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

Row = dict[str, Any]
AUDIO = b"not read"


def jsonl(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps({"audio_filepath": "long.wav", "text": "a"} | row) + "\n" for row in rows))
    return path


def speechbrain(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "m.json"
    path.write_text(json.dumps({f"u{i}": {"wav": "long.wav", "words": "a"} | row for i, row in enumerate(rows)}))
    return path


def speechbrain_parts(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "m.json"
    values = {
        f"u{i}": {"wav": {"file": "long.wav"} | _inner(row), "words": "a"} | _outer(row) for i, row in enumerate(rows)
    }
    path.write_text(json.dumps(values))
    return path


def quartznet(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "m.json"
    about = {"transcript": "a", "original_duration": 99.0}
    values = [about | {"files": [{"fname": "long.wav"} | _inner(row)]} | _outer(row) for row in rows]
    path.write_text(json.dumps(values))
    return path


def nemo_tarred(folder: Path, rows: Sequence[Row]) -> Path:
    tar(folder / "audio_0.tar", {"long.wav": AUDIO})
    path = folder / "tarred_audio_manifest.json"
    names = ["long.wav", *(f"long-sub{i}.wav" for i in range(1, len(rows)))]
    values = [{"audio_filepath": n, "text": "a", "shard_id": 0} | row for n, row in zip(names, rows, strict=True)]
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def webdataset(folder: Path, rows: Sequence[Row]) -> Path:
    members = {f"u{i}.{end}": data for i, row in enumerate(rows) for end, data in _sample(row).items()}
    return tar(folder / "m.tar", members)


def csv(folder: Path, rows: Sequence[Row], name: str = "m.csv", separator: str = ",") -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [["path", "text", *names], *(["long.wav", "a", *(_cell(row.get(n)) for n in names)] for row in rows)]
    (folder / name).write_text("".join(separator.join(line) + "\n" for line in lines))
    return folder / name


def tsv(folder: Path, rows: Sequence[Row]) -> Path:
    return csv(folder, rows, "m.tsv", "\t")


def parquet(folder: Path, rows: Sequence[Row]) -> Path:
    pq.write_table(_table(rows), folder / "m.parquet")
    return folder / "m.parquet"


def arrow(folder: Path, rows: Sequence[Row]) -> Path:
    table = _table(rows)
    with pa.ipc.new_stream(str(folder / "m.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "m.arrow"


def msgpack_records(folder: Path, rows: Sequence[Row]) -> Path:
    records = (msgpack.packb({"audio": AUDIO, "text": "a"} | row) for row in rows)
    return write_records(folder / "m.array_record", records)


def example_records(folder: Path, rows: Sequence[Row]) -> Path:
    given = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return write_records(folder / "m.array_record", (example({"audio": AUDIO, "text": "a"} | row) for row in given))


WRITERS: tuple[Callable[[Path, Sequence[Row]], Path], ...] = (
    *(jsonl, speechbrain, speechbrain_parts, quartznet, nemo_tarred, webdataset, csv, tsv, parquet, arrow),
    *(msgpack_records, example_records),
)


def read_rows(
    write: Callable[[Path, Sequence[Row]], Path], folder: Path, rows: Sequence[Row], options: ReadOptions
) -> list[Utterance | Rejected]:
    """What the reader of the format that `write` writes yields for the rows."""
    ((_, path, reader),) = resolve([str(write(folder, rows))], options=options)
    with Unpacked(str(folder / "unpacked")) as unpacked:
        return list(reader.read(path, replace(options, unpacked=unpacked)))


def part_of_entry(entry: Utterance) -> tuple[float, float | None, int | None]:
    """Start, length and channel of an utterance."""
    place = Location.parse(entry.location)
    return place.start_s, place.length_s, place.channel


def _sample(row: Row) -> dict[str, bytes]:
    return {"flac": AUDIO, "json": json.dumps({"text": "a"} | row).encode()}


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _outer(row: Row) -> Row:
    """Fields that are not those of the audio."""
    return {name: value for name, value in row.items() if name == "_skipme"}


def _inner(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "_skipme"}


def _cell(value: Any) -> str:
    return "" if value is None else f'"{value}"' if "," in str(value) else str(value)


def _table(rows: Sequence[Row]) -> pa.Table:
    """Columns of all fields. Those with values of several types are strings."""
    columns: dict[str, list[Any]] = {"audio_bytes": [AUDIO] * len(rows), "text": ["a"] * len(rows)}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        is_mixed = len({type(value) for value in values} - {type(None)}) > 1
        columns[name] = [_cell(value) or None for value in values] if is_mixed else values
    return pa.table(columns)
