"""Gathering: all utterances of some inputs, with the places and durations that their manifests leave open."""

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
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

# Of an input, as many entries as this may be rejected, or a tenth: with more, something is wrong with all of it.
MAX_REJECTED = 10
MAX_REJECTED_SHARE = 0.1
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

    Raises: UserError for an input that cannot be read, that has no utterances, or of which more than a tenth (and
    more than 10 entries) is rejected.
    """
    with Unpacked(os.path.abspath(unpack_to)) as unpacked:
        listed = [_listed(path, reader, unpacked, options) for _, path, reader in inputs]
    if unpacked.num_bytes > MUCH_UNPACKED:
        logger.warning("unpacked %.1f GB of audio or features to %s", unpacked.num_bytes / 1e9, unpacked.path)
    utterances, input_of, unread, looked_for, only_in = (
        list[Utterance](),
        list[int](),
        list[Rejected](),
        list[str](),
        "",
    )
    measured, known = list[Row](), {row[0]: row for row in before.rows()} if before else {}
    for (number, path, reader), (found, _) in zip(inputs, listed, strict=True):
        start, missing = _start([utterance.location for utterance in found], reader.roots(path))
        looked_for += missing
        only_in = os.getcwd() if start == os.curdir else only_in
        own = {unpacked.path, *map(os.path.abspath, reader.files(path, options))}
        entries, rows = measure(_placed(found, os.path.abspath(start)), trim_db=trim_db, own=own, known=known)
        placed = [entry for entry in entries if isinstance(entry, Utterance)]
        bad = [entry for entry in entries if isinstance(entry, Rejected)]
        _check_share(path, len(placed), bad)
        utterances += placed
        measured += rows
        unread += bad
        input_of += [number] * len(placed)
    columns = Columns.of(unique_ids(utterances), input_of)
    return Read(
        columns=columns,
        digest=columns.digest(),
        rejected=tuple(entry for _, bad in listed for entry in bad),
        unread=tuple(unread),
        looked_for=tuple(looked_for),
        only_in=only_in,
        measured=Measured.of(measured),
        unpacked=unpacked.path if unpacked.num_bytes else "",
    )


def _listed(
    path: str, reader: Reader, unpacked: Unpacked, options: ReadOptions
) -> tuple[list[Utterance], list[Rejected]]:
    """As the manifest has them."""
    utterances, rejected = list[Utterance](), list[Rejected]()
    for entry in with_bar(reader.read(path, unpacked, options), None, os.path.basename(path)):
        entry = _printable(entry)
        if isinstance(entry, Utterance):
            utterances.append(entry)
        else:
            rejected.append(entry)
    if not utterances and not rejected:
        raise UserError(f"{path} has no utterances; expected one utterance or more, such as {EXAMPLE}")
    _check_share(path, len(utterances), rejected)
    return utterances, rejected


def _printable(entry: Utterance | Rejected) -> Utterance | Rejected:
    """A Rejected where a name cannot be written into UTF-8 files, or opened."""
    if entry.id.isprintable() and entry.location.isprintable():
        return entry
    name, location = (text.encode(errors="backslashreplace").decode() for text in (entry.id, entry.location))
    if isinstance(entry, Rejected):
        return Rejected(name, location, entry.reason)
    if (name, location) == (entry.id, entry.location) and "\0" not in location:
        return entry
    return Rejected(name, location, "its name is not UTF-8, or has a zero byte; rename the file")


def _check_share(path: str, num_utterances: int, rejected: Sequence[Rejected]) -> None:
    """Raises: UserError where something is wrong with an input as a whole."""
    if num_utterances and len(rejected) <= max(MAX_REJECTED, MAX_REJECTED_SHARE * (num_utterances + len(rejected))):
        return
    reasons = "\n".join(f"{entry.location}: {entry.reason}" for entry in rejected[:3])
    if not num_utterances and len(rejected) <= 3:
        raise UserError(reasons)
    raise UserError(
        f"{path}: {len(rejected)} of {num_utterances + len(rejected)} entries cannot be used, more than a tenth; mend "
        f"them, or leave them out of it. The first:\n{reasons}"
    )


def _start(locations: Sequence[str], roots: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that relative locations start from: the first of the roots at which one of them is. Where none is
    anywhere: the first root, and the paths that were looked for.
    """
    relative = [location for location in locations if not os.path.isabs(location)]
    looked_for = []
    for location in relative[:: len(relative) // LOOKED_UP + 1]:
        for root in roots:
            looked_for.append(os.path.join(root, Location.parse(location).path))
            if os.path.exists(looked_for[-1]):
                return root, []
    return roots[0], looked_for


def _placed(utterances: Sequence[Utterance], start: str) -> list[Utterance]:
    """With absolute paths, without `..` and the like where these do not lead through a link."""
    plain = functools.cache(_plain)
    placed = []
    for utterance in utterances:
        path = utterance.location
        if not os.path.isabs(path) or "/." in path or "//" in path:
            folder, name = os.path.split(os.path.join(start, path))
            utterance = replace(utterance, location=os.path.join(plain(folder), name))
        placed.append(utterance)
    return placed


def _plain(folder: str) -> str:
    normal = os.path.normpath(folder)
    return normal if os.path.realpath(normal) == os.path.realpath(folder) else folder


def unique_ids(utterances: Sequence[Utterance]) -> list[Utterance]:
    """The utterances in order, every id once: its later ones get a suffix, so that no utterance is lost over its name."""
    taken = {utterance.id for utterance in utterances}
    if len(taken) == len(utterances):
        return list(utterances)
    seen: Counter[str] = Counter()
    renamed, result = [], []
    for utterance in utterances:
        seen[utterance.id] += 1
        if seen[utterance.id] > 1:
            while (name := f"{utterance.id}#{seen[utterance.id]}") in taken:
                seen[utterance.id] += 1
            taken.add(name)
            renamed.append(utterance.id)
            utterance = replace(utterance, id=name)
        result.append(utterance)
    logger.warning("%d ids repeat (first: %s): their later utterances got #2, #3 …", len(renamed), renamed[0])
    return result
