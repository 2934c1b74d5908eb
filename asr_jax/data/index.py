"""The index: what training needs of every record that passes the rules, tokenised once, in flat arrays."""

import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Shaped

from asr_jax.data.filters import Dropped, Filters, broken_rule
from asr_jax.data.manifest import Record

OutputLength = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths in one flat array: labels, or the UTF-8 bytes of strings."""

    values: Shaped[np.ndarray, " N"]
    offsets: Shaped[np.ndarray, " R1"]
    """Where row r begins; the last entry is where the last row ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Shaped[np.ndarray, " U"]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def text(self, row: int) -> str:
        return self[row].tobytes().decode()

    def lengths(self) -> Int32[np.ndarray, " R"]:
        return np.diff(self.offsets).astype(np.int32)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> "Ragged":
        parts = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(parts), np.uint8), offsets)


@dataclass(frozen=True, slots=True)
class Index:
    """The records that are used, by row. Some 130 bytes per record with a path of 80, plus labels and text."""

    rate_hz: int
    samples: Int32[np.ndarray, " R"]
    """Samples at `rate_hz` by the record's duration."""
    labels: Ragged
    """In the smallest unsigned type that holds them."""
    ids: Ragged
    audio_paths: Ragged
    texts: Ragged
    sources: tuple[str, ...]
    """The names of all sources."""
    source_of: Int32[np.ndarray, " R"]
    """Which of `sources` a row comes from."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def hours(self) -> float:
        return float(self.samples.sum(dtype=np.int64)) / self.rate_hz / 3600

    def fingerprint(self) -> str:
        """Equal where ids, durations, texts and labels of all rows are: what lies at which path does not count."""
        digest = hashlib.sha256()
        columns = (self.ids, self.texts, self.labels)
        for numbers in (self.samples, *(part for column in columns for part in (column.offsets, column.values))):
            digest.update(f"{numbers.dtype}{numbers.shape}".encode())
            digest.update(np.ascontiguousarray(numbers))
        return digest.hexdigest()[:16]

    def source(self, row: int) -> str:
        return self.sources[self.source_of[row]]


def build_index(
    records: Iterable[Record],
    *,
    encode: Callable[[str], list[int]] | None,
    output_length: OutputLength | None = None,
    filters: Filters | None = None,
    rate_hz: int = 16000,
    max_speed: float = 1.0,
) -> tuple[Index, Dropped]:
    """The records that pass all rules, tokenised once, and those that do not.

    `encode` gives labels or raises ValueError for text out of vocabulary; None where labels are not needed.
    `output_length` gives encoder frames for samples (ints and arrays): a record whose labels no CTC path can fit,
    at the fastest speed `max_speed` that it will be played at, is dropped; None leaves that rule out.
    """
    dropped = Dropped()
    kept: list[Record] = []
    labels = array("i")
    num_labels: list[int] = []
    for record in records:
        if broken := broken_rule(record, filters or Filters()):
            dropped.add(record, *broken)
            continue
        row = _encode(record, encode, dropped)
        if row is not None:
            kept.append(record)
            labels.extend(row)
            num_labels.append(len(row))
    flat = np.frombuffer(labels, np.int32) if labels else np.zeros(0, np.int32)
    ragged = Ragged(flat, np.cumsum([0, *num_labels], dtype=np.int64))
    samples = np.rint(np.array([record.duration_s for record in kept], np.float64) * rate_hz).astype(np.int32)
    if output_length is not None and encode is not None and kept:
        frames = np.asarray(output_length(np.rint(samples / max_speed).astype(np.int32)))
        fits = _fits(frames, ragged, kept, dropped)
        kept = [record for record, fit in zip(kept, fits, strict=True) if fit]
        samples, ragged = samples[fits], _select(ragged, fits)
    return _index(kept, samples, ragged, rate_hz), dropped


def repeats(labels: Ragged) -> Int32[np.ndarray, " R"]:
    """How many labels of each row equal the one before: CTC needs a blank between them."""
    equal = np.zeros(len(labels.values) + 1, np.int64)
    equal[2:] = np.cumsum(labels.values[1:] == labels.values[:-1])
    first = np.minimum(labels.offsets[:-1] + 1, labels.offsets[1:])
    return (equal[labels.offsets[1:]] - equal[first]).astype(np.int32)


def _encode(record: Record, encode: Callable[[str], list[int]] | None, dropped: Dropped) -> list[int] | None:
    """Labels, or None for a record that was dropped because it has none."""
    if encode is None:
        return []
    try:
        labels = encode(record.text)
    except ValueError as error:
        dropped.add(record, "out of vocabulary", str(error), None)
        return None
    if not labels:
        dropped.add(record, "empty text", 0, 1)
        return None
    return labels


def _fits(frames: np.ndarray, labels: Ragged, records: list[Record], dropped: Dropped) -> Bool[np.ndarray, " R"]:
    """True where frames ≥ labels + repeats; the others are dropped."""
    needed = labels.lengths() + repeats(labels)
    fits = frames >= needed
    for row in np.flatnonzero(~fits):
        dropped.add(records[row], "fewer frames than labels and repeats", int(frames[row]), int(needed[row]))
    return fits


def _select(ragged: Ragged, rows: Bool[np.ndarray, " R"]) -> Ragged:
    lengths = ragged.lengths()
    return Ragged(
        ragged.values[np.repeat(rows, lengths)], np.concatenate([[0], np.cumsum(lengths[rows], dtype=np.int64)])
    )


def _index(records: list[Record], samples: np.ndarray, labels: Ragged, rate_hz: int) -> Index:
    largest = int(labels.values.max(initial=0))
    sources = tuple(dict.fromkeys(record.source for record in records))
    number = {source: i for i, source in enumerate(sources)}
    return Index(
        rate_hz=rate_hz,
        samples=samples,
        labels=Ragged(labels.values.astype(np.min_scalar_type(largest)), labels.offsets),
        ids=Ragged.of_texts(record.id for record in records),
        audio_paths=Ragged.of_texts(record.audio_path for record in records),
        texts=Ragged.of_texts(record.text for record in records),
        sources=sources,
        source_of=np.array([number[record.source] for record in records], np.int32),
    )
