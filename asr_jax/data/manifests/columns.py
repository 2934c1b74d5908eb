"""Columns: values of a million utterances in flat arrays, which are saved to files and memory-mapped."""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, Shaped

from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.manifests.arrays import ByFile, digest_of_values, mapped, save_arrays
from asr_jax.data.manifests.utterances import Utterance

AT_ONCE = 1024
"""Rows that are converted to numbers or strings together. A million together take gigabytes."""


@dataclass(frozen=True)
class Ragged(ByFile):
    """Rows of different lengths in one flat array: labels, or the UTF-8 bytes of strings."""

    values: Shaped[np.ndarray, " N"]
    offsets: Int64[np.ndarray, " R1"]
    """First value of each row; the last entry is the end of the last row."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Shaped[np.ndarray, " U"]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def text(self, row: int) -> str:
        return self[row].tobytes().decode()

    def lengths(self) -> Int32[np.ndarray, " R"]:
        # In one pass: of ten million rows, a pass takes 20 ms.
        return np.subtract(self.offsets[1:], self.offsets[:-1], dtype=np.int32, casting="unsafe")

    def all_texts(self) -> Iterator[str]:
        """Yields the text of every row, in a third of the time that `text` takes."""
        for first in range(0, len(self), AT_ONCE):
            offsets = self.offsets[first : first + AT_ONCE + 1].tolist()
            content = self.values[offsets[0] : offsets[-1]].tobytes()
            for begin, end in itertools.pairwise(offsets):
                yield content[begin - offsets[0] : end - offsets[0]].decode()

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> "Ragged":
        parts = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(parts), np.uint8), offsets)

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The rows of all parts, one after the other."""
        lengths = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.cumsum(np.concatenate(lengths), dtype=np.int64))

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[int]]) -> "Ragged":
        """Creates rows of the smallest unsigned type that holds all values."""
        lengths, parts = [np.zeros(1, np.int64)], [np.zeros(0, np.uint8)]
        for some in itertools.batched(rows, AT_ONCE):
            lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
            values = np.fromiter(itertools.chain.from_iterable(some), np.int64, lengths[-1].sum())
            parts.append(values.astype(np.min_scalar_type(int(values.max(initial=0)))))
        return cls(np.concatenate(parts), np.cumsum(np.concatenate(lengths)))


@dataclass(frozen=True)
class NameColumn(ByFile):
    """Few names that many rows share: speakers, sources."""

    names: tuple[str, ...]
    of_row: Int32[np.ndarray, " R"]
    """Index of each row into `names`."""

    def __getitem__(self, row: int) -> str:
        return self.names[self.of_row[row]]

    @classmethod
    def of(cls, names: Sequence[str]) -> "NameColumn":
        distinct = tuple(dict.fromkeys(names))
        number = {name: i for i, name in enumerate(distinct)}
        return cls(distinct, np.fromiter((number[name] for name in names), np.int32, len(names)))

    @classmethod
    def joined(cls, parts: Sequence["NameColumn"]) -> "NameColumn":
        """The rows of all parts, one after the other."""
        distinct = tuple(dict.fromkeys(itertools.chain.from_iterable(part.names for part in parts)))
        number = {name: i for i, name in enumerate(distinct)}
        new = [np.array([number[name] for name in part.names], np.int32) for part in parts]
        return cls(distinct, np.concatenate([to[part.of_row] for to, part in zip(new, parts, strict=True)]))


@dataclass(frozen=True)
class Columns(ByFile):
    """Values of utterances in manifests, by column; R rows."""

    ids: Ragged
    locations: Ragged
    texts: Ragged
    num_chars: Int32[np.ndarray, " R"]
    """Number of Unicode characters of the text."""
    duration_s: Float64[np.ndarray, " R"]
    """Duration in seconds; NaN if neither manifest nor signal has one."""
    speakers: NameColumn
    sources: NameColumn
    labels: Ragged
    """Token ids of manifests, unchanged."""
    has_labels: Bool[np.ndarray, " R"]
    """Whether the manifest has token ids for the row."""
    num_frames: Int32[np.ndarray, " R"]
    """Number of frames of ready features; 0 for audio."""
    num_values: Int32[np.ndarray, " R"]
    """Number of values per frame of ready features; 0 for audio."""
    input_of: Int32[np.ndarray, " R"]
    """Index of the input of each row, among the inputs that are read together."""

    def __len__(self) -> int:
        return len(self.duration_s)

    @classmethod
    def of(cls, utterances: Sequence[Utterance], input_of: Sequence[int] | None = None) -> "Columns":
        num = len(utterances)
        return cls(
            ids=Ragged.of_texts(utterance.id for utterance in utterances),
            locations=Ragged.of_texts(utterance.location for utterance in utterances),
            texts=Ragged.of_texts(utterance.text for utterance in utterances),
            num_chars=np.fromiter((len(utterance.text) for utterance in utterances), np.int32, num),
            duration_s=np.fromiter((utterance.duration_s for utterance in utterances), np.float64, num),
            speakers=NameColumn.of([utterance.speaker for utterance in utterances]),
            sources=NameColumn.of([utterance.source for utterance in utterances]),
            labels=Ragged.of_rows(utterance.labels or () for utterance in utterances),
            has_labels=np.fromiter((utterance.labels is not None for utterance in utterances), np.bool_, num),
            num_frames=np.fromiter((utterance.num_frames for utterance in utterances), np.int32, num),
            num_values=np.fromiter((utterance.num_values for utterance in utterances), np.int32, num),
            input_of=np.zeros(num, np.int32) if input_of is None else np.asarray(input_of, np.int32),
        )

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """The rows of all parts, one after the other; equal to `of` of all their utterances."""
        if not parts:
            return cls.of([])
        columns: dict[str, Any] = {}
        for field in fields(cls):
            of_parts = [getattr(part, field.name) for part in parts]
            kind = type(of_parts[0])
            columns[field.name] = kind.joined(of_parts) if kind in (Ragged, NameColumn) else np.concatenate(of_parts)
        return cls(**columns)

    def utterances(self) -> Iterator[Utterance]:
        """Yields the utterance of every row, in a third of the time that `utterance` takes."""
        labels = (tuple(self.labels[row].tolist()) if has else None for row, has in enumerate(self.has_labels.tolist()))
        speakers, sources = (
            [of.names[number] for number in of.of_row.tolist()] for of in (self.speakers, self.sources)
        )
        texts = (of.all_texts() for of in (self.ids, self.locations, self.texts))
        numbers = (of.tolist() for of in (self.num_frames, self.num_values))
        rows = zip(*texts, self.duration_s.tolist(), speakers, sources, labels, *numbers, strict=True)
        return itertools.starmap(Utterance, rows)

    def utterance(self, row: int) -> Utterance:
        return Utterance(
            id=self.ids.text(row),
            location=self.locations.text(row),
            text=self.texts.text(row),
            duration_s=float(self.duration_s[row]),
            speaker=self.speakers[row],
            source=self.sources[row],
            labels=tuple(self.labels[row].tolist()) if self.has_labels[row] else None,
            num_frames=int(self.num_frames[row]),
            num_values=int(self.num_values[row]),
        )

    def digest(self) -> str:
        """Digest of ids, durations, texts, labels, shapes and inputs of all rows. Paths are not included."""
        arrays = (
            *(part for column in (self.ids, self.texts, self.labels) for part in (column.offsets, column.values)),
            *(self.duration_s, self.has_labels, self.num_frames, self.num_values, self.input_of),
        )
        return digest_of_values(*arrays)[:16]


def save_columns(columns: Any, folder: Path, *, prefix: str = "") -> None:
    """Writes the fields of a dataclass, such as Columns: one file per array, and one with the names."""
    arrays: dict[str, np.ndarray] = {}
    names: dict[str, tuple[str, ...]] = {}
    for field in fields(columns):
        column = getattr(columns, field.name)
        if isinstance(column, Ragged):
            arrays |= {f"{prefix}{field.name}.values": column.values, f"{prefix}{field.name}.offsets": column.offsets}
        elif isinstance(column, NameColumn):
            arrays[f"{prefix}{field.name}.of_row"] = column.of_row
            names[field.name] = column.names
        else:
            arrays[f"{prefix}{field.name}"] = column
    save_arrays(folder, arrays)
    write_whole(folder / f"{prefix}names.json", json_text(names))


def load_columns[C](kind: Callable[..., C], folder: Path, *, prefix: str = "") -> C:
    """Memory-maps the fields of a dataclass that `save_columns` wrote."""
    names = json.loads(read_text(folder / f"{prefix}names.json"))
    columns: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        path = folder / f"{prefix}{field.name}"
        if field.name in names:
            columns[field.name] = NameColumn(tuple(names[field.name]), mapped(folder / f"{path.name}.of_row"))
        elif os.path.exists(f"{path}.npy"):
            columns[field.name] = mapped(path)
        else:
            columns[field.name] = load_ragged(path)
    return kind(**columns)


def load_ragged(path: Path) -> Ragged:
    """Memory-maps `FOLDER/NAME` from its arrays `NAME.values` and `NAME.offsets`."""
    return Ragged(mapped(path.with_name(f"{path.name}.values")), mapped(path.with_name(f"{path.name}.offsets")))
