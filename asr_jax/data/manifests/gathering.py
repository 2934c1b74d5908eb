"""Gathers all utterances of some inputs, and completes the locations and durations that manifests leave open."""

import functools
import itertools
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.jobs import Job
from asr_jax.core.names import counted, one_line, unique
from asr_jax.data.manifests.cache import Read
from asr_jax.data.manifests.columns import Columns, Ragged
from asr_jax.data.manifests.lines import lines_of, place_in
from asr_jax.data.manifests.locations import DRIVE, Location, from_windows, local_location
from asr_jax.data.manifests.measuring import MeasuredAudio, Row, measure
from asr_jax.data.manifests.progress import with_bar
from asr_jax.data.manifests.readers.base import Input, Reader, ReadOptions, notes_of
from asr_jax.data.manifests.readers.fields import EXAMPLE
from asr_jax.data.manifests.remote import is_url
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance, with_usable_name

# Number and share of an input's utterances that may be rejected. If both are exceeded, the input as a whole is wrong.
MAX_REJECTED = 10
MAX_REJECTED_SHARE = 0.1
LOOKED_UP = 100
"""Maximum number of relative locations that are looked for to find the folder that all are relative to."""
SPECIAL = re.compile(rf"^~|:/|\||\\|#(.*&)?pipe=|{DRIVE.pattern}")
"""Parts of the locations that are not paths of this system: home folders, URLs, commands, paths of Windows."""
BLOCK = 1 << 16
"""Utterances that are in memory as objects; the others are in columns."""
MUCH_UNPACKED = 1 << 28
"""Number of unpacked bytes from which a warning is logged."""
logger = logging.getLogger(__name__)


def gather(
    inputs: Sequence[Input],
    options: ReadOptions,
    *,
    trim_db: float,
    unpack_to: str,
    before: MeasuredAudio | None = None,
    job: Job | None = None,
) -> Read:
    """Reads all utterances of the inputs, one input after the other.

    Args:
        trim_db: Silence at both ends that is quieter than the loudest part by this many dB is trimmed. 0: no trimming.
        unpack_to: File for the bytes that are contained in tables and lines of JSON.
        before: Earlier measurements of the same inputs. Audio is measured again only if it has changed.
        job: Job of the utterances that is measured and returned, with ids that may be repeated; the first one has
            the rejected entries of the inputs. None: all.

    Raises:
        UserError: If an input cannot be read, if it has no utterances, or if more than a tenth of its utterances (and
            more than 10) are rejected.
    """
    with Unpacked(os.path.abspath(unpack_to)) as unpacked:
        listed, notes = list[tuple[deque[Columns], list[Rejected]]](), list[str]()
        for _, path, reader in inputs:
            listed.append(_listed(path, reader, replace(options, unpacked=unpacked), notes))
    if unpacked.num_bytes > MUCH_UNPACKED:
        logger.warning("unpacked %.1f GB of audio or features to %s", unpacked.num_bytes / 1e9, unpacked.path)
    rejected = tuple(entry for _, bad in listed for entry in bad if job is None or job.number == 0)
    if job:
        _cut([blocks for blocks, _ in listed], job)
    parts, without_duration, looked_for, only_in = list[Columns](), list[Rejected](), list[str](), ""
    measured, known = list[Row](), {row[0]: row for row in before.rows()} if before else {}
    for (number, path, reader), (blocks, _) in zip(inputs, listed, strict=True):
        roots = [options.root or root if root == os.curdir else root for root in reader.roots(path)]
        start, missing = _start(_sampled(blocks), roots)
        looked_for += missing
        only_in = os.getcwd() if start == os.curdir else only_in
        own = {unpacked.path, *map(os.path.abspath, reader.files(path, options))}
        bad, num = list[Rejected](), 0
        while blocks:  # each block is freed when its successor exists
            placed = _placed(blocks.popleft().utterances(), start if is_url(start) else os.path.abspath(start))
            entries, rows = measure(placed, trim_db=trim_db, own=own, known=known)
            there = [entry for entry in entries if isinstance(entry, Utterance)]
            bad += [entry for entry in entries if isinstance(entry, Rejected)]
            parts.append(Columns.of(there, [number] * len(there)))
            measured += rows
            num += len(there)
        if num or bad or job is None:
            _check_share(path, num, bad, may_reject=options.may_reject)
        without_duration += bad
    columns = Columns.joined(parts)
    columns = columns if job else with_unique_ids(columns)
    return Read(
        columns=columns,
        digest=columns.digest(),
        rejected=rejected,
        without_duration=tuple(without_duration),
        looked_for=tuple(looked_for),
        only_in=only_in,
        measured=MeasuredAudio.of(measured),
        unpacked=unpacked.path if unpacked.num_bytes else "",
        notes=tuple(notes),
    )


def _listed(path: str, reader: Reader, options: ReadOptions, notes: list[str]) -> tuple[deque[Columns], list[Rejected]]:
    """Utterances as in the manifest, in blocks of columns, and rejected utterances. Adds remarks to `notes`.

    A block takes a tenth of the memory of its utterances, and all utterances of a large input would not fit.
    """
    blocks, utterances, rejected = deque[Columns](), list[Utterance](), list[Rejected]()
    skipped, roots = 0, reader.roots(path)
    options.remarks.clear()
    for entry in with_bar(reader.read(path, options), None, os.path.basename(path)):
        if isinstance(entry, Rejected) and entry.stage == "filter":
            skipped += 1
            continue
        entry = _local(with_usable_name(entry), path, roots, options)
        if isinstance(entry, Rejected):
            rejected.append(entry)
            continue
        utterances.append(entry)
        if len(utterances) == BLOCK:
            blocks.append(Columns.of(utterances))
            utterances = []
    blocks.append(Columns.of(utterances))
    num = sum(map(len, blocks))
    notes += notes_of(path, skipped, options)
    if not num and not rejected:
        but = notes[-1].removeprefix(path) if skipped else ""
        raise UserError(f"{path} has no utterances{but}; expected one utterance or more, such as {EXAMPLE}")
    _check_share(path, num, rejected, may_reject=options.may_reject)
    return blocks, rejected


def _cut(inputs: Sequence[deque[Columns]], job: Job) -> None:
    """Leaves only the utterances of a job in the blocks of the inputs."""
    num = sum(len(block) for blocks in inputs for block in blocks)
    own, first = range(num)[job.rows(num)], 0
    for blocks in inputs:
        for _ in range(len(blocks)):
            block = blocks.popleft()
            begin, end = (min(max(place - first, 0), len(block)) for place in (own.start, own.stop))
            blocks.append(Columns.of(list(itertools.islice(block.utterances(), begin, end))))
            first += len(block)


def _local(
    entry: Utterance | Rejected, manifest: str, roots: Sequence[str], options: ReadOptions
) -> Utterance | Rejected:
    """Resolves `~`, file://, commands and backslashes in the location of an utterance.

    Returns a Rejected for what is not read.
    """
    if isinstance(entry, Rejected) or not SPECIAL.search(entry.location):
        return entry
    try:
        location = local_location(entry.location, allow_pipes=options.allow_pipes)
        return replace(entry, location=from_windows(location, roots))
    except ValueError as error:
        name, location = one_line(entry.id), one_line(entry.location)
        return Rejected(name, f"{manifest}: {name}" if "|" in location else location, str(error))


def _check_share(path: str, num_utterances: int, rejected: Sequence[Rejected], *, may_reject: bool) -> None:
    """Checks the number of rejected utterances."""
    if num_utterances and may_reject:
        return
    if num_utterances and len(rejected) <= max(MAX_REJECTED, MAX_REJECTED_SHARE * (num_utterances + len(rejected))):
        return
    lines = lines_of([path])
    reasons = "\n".join(f"{place_in(lines, entry)}{entry.location}: {entry.reason}" for entry in rejected[:3])
    if not num_utterances and len(rejected) <= 3:
        raise UserError(reasons)
    raise UserError(
        f"{path}: {len(rejected)} of {num_utterances + len(rejected)} utterances cannot be used, more than a tenth; "
        f"correct them, or remove them from the input. The first:\n{reasons}"
    )


def _sampled(blocks: Iterable[Columns]) -> list[str]:
    """Some of the relative locations, evenly spread over the blocks, at most LOOKED_UP of each."""
    sampled = []
    for block in blocks:
        locations = block.locations.all_texts()
        relative = [each for each in locations if not os.path.isabs(each) and not is_url(each)]
        sampled += relative[:: len(relative) // LOOKED_UP + 1]
    return sampled


def _start(relative: Sequence[str], roots: Sequence[str]) -> tuple[str, list[str]]:
    """Folder that relative locations start from, and paths that do not exist.

    The folder is the first of the roots that has one of the locations. If no root has any, it is the first root, and
    all paths that were looked for are returned.
    """
    looked_for = list[str]()
    if is_url(roots[0]):
        return roots[0], looked_for
    for location in relative[:: len(relative) // LOOKED_UP + 1]:
        for root in roots:
            looked_for.append(os.path.join(root, Location.parse(location).path))
            if os.path.exists(looked_for[-1]):
                return root, []
    return roots[0], looked_for


def _placed(utterances: Iterable[Utterance], start: str) -> list[Utterance]:
    """Utterances with absolute paths. Parts such as `..` are removed if they do not lead through a link."""
    plain = functools.cache(_plain)
    placed = []
    for utterance in utterances:
        path = utterance.location
        if is_url(path):
            placed.append(utterance)
            continue
        if not os.path.isabs(path) or "/." in path or "//" in path:
            folder, name = os.path.split(os.path.join(start, path))
            utterance = replace(utterance, location=os.path.join(plain(folder), name))
        placed.append(utterance)
    return placed


def _plain(folder: str) -> str:
    if is_url(folder):
        return folder
    normal = os.path.normpath(folder)
    return normal if os.path.realpath(normal) == os.path.realpath(folder) else folder


def with_unique_ids(columns: Columns) -> Columns:
    """Makes ids unique: repeated ids get the suffix `#2`, `#3` …, because utterances with equal ids would be lost."""
    hashes = np.fromiter(map(hash, columns.ids.all_texts()), np.int64, len(columns))  # a set of ids takes 100 B per id
    hashes.sort()
    if (hashes[1:] != hashes[:-1]).all():
        return columns
    ids = list(columns.ids.all_texts())
    return replace(columns, ids=Ragged.of_texts(unique_ids(ids)))


def unique_ids(ids: Sequence[str]) -> list[str]:
    """Ids of which repeated ones have the suffix `#2`, `#3` …; says how many."""
    result = unique(ids)
    renamed = [old for old, new in zip(ids, result, strict=True) if old != new]
    if not renamed:
        return result
    are = "has the id of another one, and its id" if len(renamed) == 1 else "have ids of others, and their ids"
    logger.warning("%s %s got #2, #3 … (first: %s)", counted(len(renamed), "utterance"), are, renamed[0])
    return result
