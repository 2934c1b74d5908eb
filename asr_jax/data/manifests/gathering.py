"""Gathering: all records of some inputs, with the places and durations that their manifests leave open."""

import functools
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.cache import Read
from asr_jax.data.manifests.columns import Columns
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.measuring import Measured, Row, measure
from asr_jax.data.manifests.progress import with_bar
from asr_jax.data.manifests.readers.base import Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import EXAMPLE
from asr_jax.data.manifests.records import Record, Refused
from asr_jax.data.manifests.unpacking import Unpacked

# Of an input, as many entries as this may be refused, or a tenth: with more, something is wrong with all of it.
MAX_REFUSED = 10
MAX_REFUSED_SHARE = 0.1
LOOKED_UP = 100
"""Relative locations that are looked for, to find out where all start."""
MUCH_UNPACKED = 1 << 28
logger = logging.getLogger(__name__)


def gather(
    inputs: Sequence[tuple[int, str, Reader]],
    options: ReadOptions,
    *,
    trim_db: float,
    unpack_to: str,
    before: Measured | None = None,
) -> Read:
    """Everything of the inputs, one after the other. `before`: of the same inputs, to be measured anew only where the
    audio has changed.

    Raises: UserError for an input that cannot be read, that has no records, or of which more than a tenth (and
    more than 10 entries) is refused.
    """
    with Unpacked(os.path.abspath(unpack_to)) as unpacked:
        listed = [_listed(path, reader, unpacked, options) for _, path, reader in inputs]
    if unpacked.num_bytes > MUCH_UNPACKED:
        logger.warning("unpacked %.1f GB of audio or features to %s", unpacked.num_bytes / 1e9, unpacked.path)
    records, input_of, unread, looked_for, only_in = list[Record](), list[int](), list[Refused](), list[str](), ""
    measured, known = list[Row](), {row[0]: row for row in before.rows()} if before else {}
    for (number, path, reader), (found, _) in zip(inputs, listed, strict=True):
        start, missing = _start([record.location for record in found], reader.roots(path))
        looked_for += missing
        only_in = os.getcwd() if start == os.curdir else only_in
        own = {unpacked.path, *map(os.path.abspath, reader.files(path, options))}
        entries, rows = measure(_placed(found, os.path.abspath(start)), trim_db=trim_db, own=own, known=known)
        placed = [entry for entry in entries if isinstance(entry, Record)]
        bad = [entry for entry in entries if isinstance(entry, Refused)]
        _check_share(path, len(placed), bad)
        records += placed
        measured += rows
        unread += bad
        input_of += [number] * len(placed)
    columns = Columns.of(unique_ids(records), input_of)
    return Read(
        columns=columns,
        digest=columns.digest(),
        refused=tuple(entry for _, bad in listed for entry in bad),
        unread=tuple(unread),
        looked_for=tuple(looked_for),
        only_in=only_in,
        measured=Measured.of(measured),
        unpacked=unpacked.path if unpacked.num_bytes else "",
    )


def _listed(path: str, reader: Reader, unpacked: Unpacked, options: ReadOptions) -> tuple[list[Record], list[Refused]]:
    """As the manifest has them."""
    records, refused = list[Record](), list[Refused]()
    for entry in with_bar(reader.read(path, unpacked, options), None, os.path.basename(path)):
        entry = _printable(entry)
        if isinstance(entry, Record):
            records.append(entry)
        else:
            refused.append(entry)
    if not records and not refused:
        raise UserError(f"{path} has no records; expected one utterance or more, such as {EXAMPLE}")
    _check_share(path, len(records), refused)
    return records, refused


def _printable(entry: Record | Refused) -> Record | Refused:
    """A Refused where a name cannot be written into UTF-8 files, or opened."""
    if entry.id.isprintable() and entry.location.isprintable():
        return entry
    name, location = (text.encode(errors="backslashreplace").decode() for text in (entry.id, entry.location))
    if isinstance(entry, Refused):
        return Refused(name, location, entry.reason)
    if (name, location) == (entry.id, entry.location) and "\0" not in location:
        return entry
    return Refused(name, location, "its name is not UTF-8, or has a zero byte; rename the file")


def _check_share(path: str, num_records: int, refused: Sequence[Refused]) -> None:
    """Raises: UserError where something is wrong with an input as a whole."""
    if num_records and len(refused) <= max(MAX_REFUSED, MAX_REFUSED_SHARE * (num_records + len(refused))):
        return
    reasons = "\n".join(f"{entry.location}: {entry.reason}" for entry in refused[:3])
    if not num_records and len(refused) <= 3:
        raise UserError(reasons)
    raise UserError(
        f"{path}: {len(refused)} of {num_records + len(refused)} entries cannot be used, more than a tenth; mend "
        f"them, or leave them out of it. The first:\n{reasons}"
    )


def _start(locations: Sequence[str], roots: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that relative locations start from: the first of the roots at which one of them is. Where none is
    anywhere: the first root, and the paths that were looked for."""
    relative = [location for location in locations if not os.path.isabs(location)]
    looked_for = []
    for location in relative[:: len(relative) // LOOKED_UP + 1]:
        for root in roots:
            looked_for.append(os.path.join(root, Location.parse(location).path))
            if os.path.exists(looked_for[-1]):
                return root, []
    return roots[0], looked_for


def _placed(records: Sequence[Record], start: str) -> list[Record]:
    """With absolute paths, without `..` and the like where these do not lead through a link."""
    plain = functools.cache(_plain)
    placed = []
    for record in records:
        path = record.location
        if not os.path.isabs(path) or "/." in path or "//" in path:
            folder, name = os.path.split(os.path.join(start, path))
            record = replace(record, location=os.path.join(plain(folder), name))
        placed.append(record)
    return placed


def _plain(folder: str) -> str:
    normal = os.path.normpath(folder)
    return normal if os.path.realpath(normal) == os.path.realpath(folder) else folder


def unique_ids(records: Sequence[Record]) -> list[Record]:
    """The records in order, every id once: its later ones get a suffix, so that no record is lost over its name."""
    taken = {record.id for record in records}
    if len(taken) == len(records):
        return list(records)
    seen: Counter[str] = Counter()
    renamed, result = [], []
    for record in records:
        seen[record.id] += 1
        if seen[record.id] > 1:
            while (name := f"{record.id}#{seen[record.id]}") in taken:
                seen[record.id] += 1
            taken.add(name)
            renamed.append(record.id)
            record = replace(record, id=name)
        result.append(record)
    logger.warning("%d ids repeat (first: %s): their later records got #2, #3 …", len(renamed), renamed[0])
    return result
