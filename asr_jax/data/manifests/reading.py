"""Reading of manifests and folders into columns of utterances: once, and afterwards memory-mapped from a cache."""

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, Int32

from asr_jax.core.jobs import Job
from asr_jax.data.manifests.cache import Read, keep, kept, place_of, unpacked_at
from asr_jax.data.manifests.columns import Columns
from asr_jax.data.manifests.gathering import gather
from asr_jax.data.manifests.inputs import Role, resolve
from asr_jax.data.manifests.readers.base import Input, ReadOptions, warn_once
from asr_jax.data.manifests.utterances import Rejected, Utterance


@dataclass(frozen=True)
class Utterances:
    """Selected rows of the columns, in this order."""

    columns: Columns
    rows: Int32[np.ndarray, " R"]
    digest: str
    """Digest of the columns. Equal digests mean equal ids, durations, texts and labels."""
    rejected: tuple[Rejected, ...] = ()
    """Utterances of the manifests that cannot be used."""
    folder: Path | None = None
    """Folder of the columns in the cache. None: the columns are only in memory."""
    shards: tuple[str, ...] = ()
    """Files of the set, of which these utterances are a sample. Empty: they are the whole set."""

    @classmethod
    def of(cls, utterances: Iterable[Utterance]) -> "Utterances":
        """Creates columns in memory from utterances."""
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
        """Subset of the pairs of id and location that belong to these utterances."""
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
    """Reads the utterances of files, folders and glob patterns in order. Repeated ids get `#2`, `#3` ….

    Everything is read once and cached. It is read again if the size or time of a manifest, or of a file beside audio,
    or the code of the readers has changed, or if audio that could not be opened can be opened. Missing durations are
    read from audio headers. They, and silence, are measured again if the size or time of the audio has changed. Audio
    whose duration is in the manifest is not opened.

    Args:
        role: Set that is read from folders of several sets.
        trim_db: Silence at both ends that is quieter than the loudest part by this many dB is trimmed. 0: no trimming.
        cache: Folder of the cache. Empty: the user's cache folder.

    Raises:
        UserError: If a path cannot be read, if an input has no utterances, or if more than a tenth of an input's
            utterances (and more than 10) are rejected.
    """
    options = options or ReadOptions()
    inputs = resolve([os.fspath(path) for path in paths], role, options)
    return read_inputs(inputs, trim_db=trim_db, cache=cache, options=options)


def read_inputs(inputs: Sequence[Input], *, trim_db: float = 0.0, cache: str = "", options: ReadOptions) -> Utterances:
    """Reads the utterances of resolved inputs, as `read_utterances`."""
    place = place_of(cache, inputs, trim_db, options)
    found = kept(place)
    if found and found[0].is_up_to_date():
        return _utterances(*found)
    before = found[0].measured if found else None
    read = gather(inputs, options, trim_db=trim_db, unpack_to=unpacked_at(place), before=before)
    # Another process may have written the cache in the meantime; its columns are then used.
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
    job: Job | None = None,
) -> Utterances:
    """Reads utterances as `read_utterances`, without a cache.

    Args:
        unpack_to: File for the bytes that are contained in tables and lines of JSON. Nothing else is written.
        job: Job of the utterances, as in `gather`. None: all.
    """
    options = options or ReadOptions()
    inputs = resolve([os.fspath(path) for path in paths], role, options)
    return _utterances(gather(inputs, options, trim_db=0.0, unpack_to=unpack_to, job=job), None)


def _utterances(read: Read, folder: Path | None) -> Utterances:
    for note in read.notes:
        warn_once(note)
    rows = np.arange(len(read.columns), dtype=np.int32)
    return Utterances(read.columns, rows, read.digest, (*read.rejected, *read.without_duration), folder)
