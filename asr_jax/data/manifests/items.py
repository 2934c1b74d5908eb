"""Items of shards in their order: utterances of tars and files of records with their audio, from any place on."""

import math
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import array_records, entries, tables, webdataset
from asr_jax.data.manifests.readers.base import ReadOptions, notes_of, warn_once
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.remote import StorageError, is_url, matching, opened, without_query
from asr_jax.data.manifests.storage import Storage, reads_of
from asr_jax.data.manifests.unpacking import Held
from asr_jax.data.manifests.utterances import Rejected, Utterance

ENDINGS = (".tar", ".parquet", ".array_record")
"""Endings of shards. That of ArrayRecord files may be followed by `-NUMBER-of-NUMBERS`."""
SAMPLED_SHARDS = 8
"""Largest number of shards that a sample is read of."""


class Item(NamedTuple):
    """One item of a shard."""

    place: int
    """Where the item begins: a byte of a tar, or the number of a row or record."""
    entry: Utterance | Rejected
    content: bytes | None
    """Audio as in its file, or float32 features. None: the audio is not in the shard, or the item is rejected."""

    def read[R](self, method: Callable[..., R], storage: Storage, **options: Any) -> R:
        """Calls `Location.info`, `audio` or `features`, with the patience of the storage if the audio is elsewhere."""
        place = Location.parse(self.entry.location)
        read = partial(method, place, content=self.content, **options)
        return read() if self.content is not None else reads_of(storage)(place.path, read)


def from_place(place: int) -> range:
    """Places of all items of a shard from a place on."""
    return range(place, sys.maxsize)


def items_at(path: str, places: Sequence[int], options: ReadOptions) -> Iterator[Item]:
    """Yields the items of a shard at some places in order. The shard is opened once, and each row group is read once.

    Args:
        path: Tar, Parquet or ArrayRecord file, local or behind a URL.
        places: Places in ascending order; a range contains all items from its start on.

    Raises:
        StorageError: If the storage fails.
        AudioError: If the shard is damaged or does not exist.
    """
    name = without_query(path)
    read = _of_parquet if name.lower().endswith(".parquet") else _of_tar
    read = _of_array_record if array_records.is_array_record(name) else read
    try:
        with opened(path) if is_url(path) else open(path, "rb") as file:
            yield from read(path, file, places, options)
    except FileNotFoundError:
        raise AudioError(path, "no such file") from None
    except (tarfile.TarError, EOFError, pyarrow.ArrowException, array_records.Damaged, ValueError) as error:
        if isinstance(error, AudioError):
            raise
        raise AudioError(path, f"damaged shard: {error}") from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def read_patiently(path: str, places: Sequence[int], options: ReadOptions, storage: Storage) -> Iterator[Item]:
    """Yields items of a shard as `items_at`, each with the patience of the storage.

    After an error, the shard is opened again. A read that is left behind because it stalls may end later. It has its
    own iterator.

    Raises:
        AudioError: If the shard cannot be read.
    """
    items, last = None, None

    def items_after_last() -> Iterator[Item]:
        if last is None:
            return items_at(path, places, options)
        if isinstance(places, range):
            return islice(items_at(path, from_place(last.place), options), 1, None)
        return items_at(path, [place for place in places if place > last.place], options)

    def read() -> Item | None:
        nonlocal items
        opened, items = items or items_after_last(), None  # after an error it stays None
        item = next(opened, None)
        items = opened
        return item

    while last := reads_of(storage)(path, read):
        yield last


def _of_tar(path: str, file: Any, places: Sequence[int], options: ReadOptions) -> Iterator[Item]:
    if isinstance(places, range):
        yield from _of_tar_from(path, file, places.start, options)
        return
    for place in places:
        yield from islice(_of_tar_from(path, file, place, options), 1)


def _of_tar_from(path: str, file: Any, place: int, options: ReadOptions) -> Iterator[Item]:
    file.seek(place)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for stem, members in webdataset.samples(tar):
            first = min(member.offset for member in members.values())
            vars(tar)["members"] = []  # otherwise all headers of the shard stay in memory
            try:
                utterance = webdataset.utterance_of(path, tar, stem, members, options)
            except InvalidEntry as error:
                yield Item(first, Rejected(stem, f"{path}: {stem}", str(error), error.stage), None)
                continue
            where = Location.parse(utterance.location)
            there = file.tell()
            file.seek(where.first_byte)
            content = file.read(where.num_bytes)
            file.seek(there)
            if len(content) < (where.num_bytes or 0):
                raise StorageError(path, f"truncated: {len(content)} of {where.num_bytes} bytes of {stem}")
            yield Item(first, utterance, content)
        webdataset.check_end(file, tar)


def _of_parquet(path: str, file: Any, places: Sequence[int], options: ReadOptions) -> Iterator[Item]:
    row, chosen = 0, places if isinstance(places, range) else frozenset(places)
    with pyarrow.parquet.ParquetFile(file, pre_buffer=False) as table:
        columns = tables.known(path, table.schema_arrow.names)
        for group in range(table.num_row_groups):
            num = table.metadata.row_group(group).num_rows
            if not any(place in chosen for place in range(row, row + num)):
                row += num
                continue
            for batch in table.iter_batches(tables.ROWS_AT_ONCE, row_groups=[group], columns=columns):
                for fields in tables.rows_of(batch):
                    if row in chosen:
                        yield _of_row(path, row, partial(dict, fields), options)
                    row += 1


def _of_array_record(path: str, file: Any, places: Sequence[int], options: ReadOptions) -> Iterator[Item]:
    with tempfile.NamedTemporaryFile(suffix=".array_record") if is_url(path) else nullcontext() as copy:
        if copy:  # the library reads local files
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
        with array_records.RecordFile(copy.name if copy else path) as records:
            found: Iterable[tuple[int, bytes]]
            if isinstance(places, range):
                found = enumerate(records.after(places.start), places.start)
            else:
                found = ((place, record) for place in places for record in islice(records.after(place), 1))
            for row, record in found:
                yield _of_row(path, row, partial(array_records.fields_of, record, path), options)


def _of_row(path: str, row: int, fields: Callable[[], dict[str, Any]], options: ReadOptions) -> Item:
    """Item of a row or record, whose values `fields` returns."""
    folder, file = os.path.split(without_query(path))
    stem = array_records.stem(file) if array_records.is_array_record(file) else os.path.splitext(file)[0]
    held, name = Held(path), f"{stem}-{row + 1}"
    try:
        utterance = entries.utterance(fields(), replace(options, unpacked=held), name=name)
    except InvalidEntry as error:
        return Item(row, Rejected(name, f"{path}: item {row + 1}", str(error), error.stage), None)
    if held.content is None and not (os.path.isabs(utterance.location) or is_url(utterance.location)):
        utterance = replace(utterance, location=os.path.join(folder, utterance.location))
    return Item(row, utterance, held.content)


def shards_of(paths: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Shards of inputs in order: files, folders and patterns, local or behind URLs. URLs are not fetched.

    Raises:
        UserError: If an input does not exist, or is not a tar, a Parquet or an ArrayRecord file.
    """
    found = list[str]()
    for path in paths:
        if is_url(path):
            found += matching(path)
        else:
            found += [file for _, file, _ in resolve([path], "train", options)]
    if others := [path for path in found if not _is_shard(without_query(path))]:
        raise UserError(
            f"{others[0]}: data.order sharded reads shards ({', '.join(ENDINGS)}); expected --data.order planned for "
            "other data"
        )
    return tuple(found)


def _is_shard(path: str) -> bool:
    return path.lower().endswith(ENDINGS) or array_records.is_array_record(path)


def sampled(
    shards: Sequence[str], num: int, options: ReadOptions, storage: Storage
) -> tuple[list[Utterance], list[Rejected]]:
    """The first items of shards, with durations, and rejected ones. The same number is read of each of some shards.

    Raises:
        UserError: If no shard can be read.
    """
    utterances, rejected = list[Utterance](), list[Rejected]()
    some = shards[:: -(-len(shards) // SAMPLED_SHARDS)]
    for path in some:
        try:
            for item in islice(read_patiently(path, from_place(0), options, storage), -(-num // len(some))):
                entry = item.entry
                if isinstance(entry, Rejected):
                    rejected.append(entry)
                    continue
                try:
                    if math.isnan(entry.duration_s):
                        entry = replace(entry, duration_s=item.read(Location.info, storage).duration_s)
                    utterances.append(entry)
                except AudioError as error:
                    rejected.append(Rejected(entry.id, entry.location, error.reason, "audio"))
        except AudioError as error:
            rejected.append(Rejected(path, path, error.reason, "audio"))
    for note in notes_of(f"{some[0]}{' …' * (len(some) > 1)}", 0, options):
        warn_once(note)
    if not utterances:
        raise UserError("no item of the shards can be read:\n" + "\n".join(entry.line for entry in rejected[:3]))
    return utterances, rejected
