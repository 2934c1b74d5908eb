"""Reading: from manifests and folders to utterances by column, once; afterwards they are mapped from a cache."""

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, Int32

from asr_jax.data.manifests.cache import Read, keep, kept, place_of, unpacked_at
from asr_jax.data.manifests.columns import Columns
from asr_jax.data.manifests.gathering import gather
from asr_jax.data.manifests.inputs import Role, resolve
from asr_jax.data.manifests.readers.base import Reader, ReadOptions
from asr_jax.data.manifests.utterances import Rejected, Utterance

Input = tuple[int, str, Reader]
"""As `resolve` gives them."""


@dataclass(frozen=True)
class Utterances:
    """Some rows of the columns, in this order."""

    columns: Columns
    rows: Int32[np.ndarray, " R"]
    digest: str
    """Of the columns: equal where ids, durations, texts and labels are."""
    rejected: tuple[Rejected, ...] = ()
    """What no utterance could be made of."""
    folder: Path | None = None
    """Where the columns are kept, if they are."""

    @classmethod
    def of(cls, utterances: Iterable[Utterance]) -> "Utterances":
        """In memory, for who makes them."""
        columns = Columns.of(list(utterances))
        return cls(columns, np.arange(len(columns), dtype=np.int32), columns.digest())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Utterance:
        return self.columns.utterance(int(self.rows[place]))

    def __iter__(self) -> Iterator[Utterance]:
        return (self.columns.utterance(row) for row in self.rows.tolist())

    def select(self, places: Int[np.ndarray, " K"] | Bool[np.ndarray, " R"] | slice) -> "Utterances":
        return replace(self, rows=self.rows[places])

    def ids(self) -> Iterator[str]:
        return (self.columns.ids.text(row) for row in self.rows.tolist())

    def texts(self) -> Iterator[str]:
        return (self.columns.texts.text(row) for row in self.rows.tolist())

    def named(self, pairs: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of the pairs of id and location that are of these utterances."""
        used = np.zeros(len(self.columns), np.bool_)
        used[self.rows] = True
        wanted, ids = {location for _, location in pairs}, self.columns.ids
        texts = enumerate(self.columns.locations.all_texts()) if pairs else ()
        return {(ids.text(row), text) for row, text in texts if text in wanted and used[row]} & pairs

    @property
    def hours(self) -> float:
        return float(np.nansum(self.columns.duration_s[self.rows])) / 3600


def read_utterances(
    paths: Sequence[str | os.PathLike[str]],
    *,
    role: Role = "train",
    trim_db: float = 0.0,
    cache: str = "",
    options: ReadOptions | None = None,
) -> Utterances:
    """The utterances of files, folders and patterns, one after the other; ids that repeat get `#2`, `#3` … .

    Everything is read once and kept under `cache` (empty: the user's cache folder); it is read anew when the size or
    time of a manifest, or of a file beside audio, is another, and when audio that could not be opened can be. Durations
    that manifests lack are those of the audio's headers; these and silence are looked for again in audio whose size or
    time is another. Audio whose duration the manifest gives is not looked at. `trim_db`: silence at both ends, quieter
    than the loudest part by so many dB, is left out; 0 leaves all.

    Raises: UserError for a path that cannot be read, for no utterances, and where more than a tenth of an input's
    entries are rejected.
    """
    options = options or ReadOptions()
    inputs = resolve([os.fspath(path) for path in paths], role, options)
    return read_inputs(inputs, trim_db=trim_db, cache=cache, options=options)


def read_inputs(inputs: Sequence[Input], *, trim_db: float = 0.0, cache: str = "", options: ReadOptions) -> Utterances:
    """As `read_utterances`, of what `resolve` gave."""
    place = place_of(cache, inputs, trim_db, options)
    found = kept(place)
    if found and found[0].is_up_to_date():
        return _utterances(*found)
    before = found[0].measured if found else None
    read = gather(inputs, options, trim_db=trim_db, unpack_to=unpacked_at(place), before=before)
    # Where another process was first meanwhile, its columns are taken.
    found = kept(place)
    if not found or not found[0].is_up_to_date():
        keep(read, place, inputs)
    return _utterances(*(kept(place) or (read, None)))


def read_once(
    paths: Sequence[str | os.PathLike[str]],
    *,
    role: Role = "train",
    unpack_to: str,
    options: ReadOptions | None = None,
) -> Utterances:
    """As `read_utterances`, and nothing is kept but, at `unpack_to`, the bytes that lie in tables and lines of JSON."""
    options = options or ReadOptions()
    inputs = resolve([os.fspath(path) for path in paths], role, options)
    return _utterances(gather(inputs, options, trim_db=0.0, unpack_to=unpack_to), None)


def _utterances(read: Read, folder: Path | None) -> Utterances:
    rows = np.arange(len(read.columns), dtype=np.int32)
    return Utterances(read.columns, rows, read.digest, (*read.rejected, *read.unread), folder)
