"""Ready features written to Parquet, in parts, so that an interrupted extraction goes on where it was."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.data.buckets import Bucket, Buckets, make_buckets
from asr_jax.data.filters import LONGEST_S, Filters
from asr_jax.data.index import Index, build_index, scale_of
from asr_jax.data.plan import BatchPlan
from asr_jax.data.reading import read_records
from asr_jax.data.source import BatchSource, open_batches
from asr_jax.text.tokenizer import Tokenizer

PART_RECORDS = 1000
SCHEMA = pa.schema(
    [
        ("id", pa.string()), ("text", pa.string()), ("rows", pa.int64()), ("cols", pa.int64()),
        ("duration_ms", pa.int64()), ("features", pa.list_(pa.float32())), ("tokens", pa.list_(pa.int64())),
        ("speaker", pa.string()), ("source", pa.string()),
    ]
)  # fmt: skip


def extract(
    out: Path,
    paths: Sequence[str],
    *,
    front_end: FrontEnd,
    tokenizer: Tokenizer | None,
    max_duration_s: float,
    max_samples: int = 0,
    workers: int = 0,
) -> int:
    """Writes the features of all records of some inputs to one file, and what is left out to `OUT.skipped.jsonl`; how
    many that is. Where the file is there already, nothing is done.

    Raises: UserError where no record is left, and where the file holds other features.
    """
    records = read_records(paths)
    if max_samples:
        records = records.select(slice(max_samples))
    index, dropped = build_index(
        records, scale=scale_of(front_end, of_features=False), tokenizer=tokenizer, given_labels=True,
        filters=replace(Filters.none(), max_duration_s=min(max_duration_s, LONGEST_S)),
    )  # fmt: skip
    if not len(index):
        raise UserError(f"{', '.join(paths)}: no record is left: {'; '.join(dropped.lines())}")
    digest = _digest(front_end, index, tokenizer, dropped.entries)
    skipped_path, parts = out.with_suffix(".skipped.jsonl"), out.with_name(f".{out.stem}-{digest}.parts")
    if _is_done(out, digest):
        print(f"{out} is already there")
    else:
        skipped = dropped.entries + _extract_parts(parts, index, front_end, workers, out)
        write_whole(skipped_path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in skipped))
        _join(sorted(parts.glob("*.parquet")), out, digest)
    shutil.rmtree(parts, ignore_errors=True)
    num_skipped = len(skipped_path.read_text(encoding="utf-8").splitlines()) if skipped_path.exists() else 0
    if not num_skipped:
        skipped_path.unlink(missing_ok=True)
    return num_skipped


def _digest(front_end: FrontEnd, index: Index, tokenizer: Tokenizer | None, dropped: Sequence[dict[str, Any]]) -> str:
    """Of all that the features, and what is left out, depend on."""
    made_of = [repr(front_end), index.fingerprint(), tokenizer and tokenizer.digest(), dropped]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]


def _extract_parts(parts: Path, index: Index, front_end: FrontEnd, workers: int, out: Path) -> list[dict[str, Any]]:
    """Writes the parts that are not there yet; what could not be read, of all of them."""
    settings = Buckets(num=min(12, 1 + len(index) // 50), batch_seconds=120.0, batch_multiple=1)
    buckets = make_buckets(index.lengths, index.num_labels(), settings, scale=index.scale)
    parts.mkdir(parents=True, exist_ok=True)
    skipped = []
    for first in range(0, len(index), PART_RECORDS):
        end = min(first + PART_RECORDS, len(index))
        part = parts / f"{first:09}.parquet"
        if not part.exists():
            _write_part(part, _rows(index, first, end), buckets, front_end, workers)
        skipped += json.loads(part.with_suffix(".json").read_text())
        print(f"{out}: {end:,} of {len(index):,} records", flush=True)
    return skipped


def _rows(index: Index, first: int, end: int) -> Index:
    return Index(index.records.select(slice(first, end)), index.scale, index.lengths[first:end], index.labels)


def _write_part(part: Path, index: Index, buckets: Sequence[Bucket], front_end: FrontEnd, workers: int) -> None:
    """The features of an index, in its order; what could not be read goes to a .json beside, which is written first."""
    found: dict[int, dict[str, Any]] = {}
    skipped: list[dict[str, str]] = []
    for row, features in _features(index, buckets, front_end, workers, skipped):
        record = index.records[row]
        found[row] = {
            "id": record.id, "text": record.text, "rows": len(features), "cols": features.shape[1],
            "duration_ms": round(record.duration_s * 1000), "features": features.ravel(),
            "tokens": index.labels_of(row).tolist() or record.labels, "speaker": record.speaker,
            "source": record.source,
        }  # fmt: skip
    table = pa.Table.from_pylist([found[row] for row in sorted(found)], schema=SCHEMA)
    write_whole(part.with_suffix(".json"), json.dumps(skipped))
    partial = part.with_suffix(f".{os.getpid()}.partial")
    pq.write_table(table, partial, compression="zstd")
    partial.replace(part)


def _features(
    index: Index, buckets: Sequence[Bucket], front_end: FrontEnd, workers: int, skipped: list[dict[str, str]]
) -> Iterator[tuple[int, Float32[np.ndarray, "T F"]]]:
    """Features by row of the index; what cannot be read is added to `skipped`."""
    plan = BatchPlan(index.lengths, index.num_labels(), buckets, order="unshuffled")
    compute = jax.jit(front_end)
    with open_batches(BatchSource(index, plan), stop=plan.batches_per_epoch, workers=workers) as batches:
        for loaded in batches:
            skipped += loaded.skipped
            frames = compute(loaded.batch.audio, loaded.batch.lengths)
            values, lengths = np.asarray(frames.values, np.float32), np.asarray(frames.lengths)
            for i in np.flatnonzero(loaded.batch.weights):
                yield int(loaded.batch.records[i]), values[i, : lengths[i]]


def _join(parts: Sequence[Path], out: Path, digest: str) -> None:
    """One file of all parts, whole or not at all."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    schema = SCHEMA.with_metadata({"asr_jax": digest})
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(pq.read_table(part).cast(schema), row_group_size=100)
    partial.replace(out)


def _is_done(out: Path, digest: str) -> bool:
    """Raises: UserError where the file holds something else."""
    if not out.exists():
        return False
    try:
        there = (pq.read_schema(out).metadata or {}).get(b"asr_jax", b"").decode()
    except pa.ArrowException:
        there = ""
    if there != digest:
        raise UserError(f"{out} holds features of other inputs or settings: give another --output, or delete it")
    return True
