"""What the preparation of every known corpus shares: lines read, audio probed, manifests and skipped.jsonl written."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from asr_jax.audio.io import AudioError, probe
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.readers.base import Entries
from asr_jax.data.manifests.readers.fields import Unusable
from asr_jax.data.manifests.readers.text_tables import text_lines
from asr_jax.data.manifests.records import Record, Refused

SHOWN_IDS = 5


def parsed_lines[T](path: Path, parse: Callable[[str], T]) -> Iterator[T | Refused]:
    """What `parse` makes of every line that is not blank; a Refused where it raises Unusable or the line is not UTF-8.

    Raises: UserError for a file that cannot be read.
    """
    for number, line in text_lines(str(path)):
        place = f"{path}:{number}"
        try:
            if isinstance(line, Unusable):
                raise line
            yield parse(line)
        except Unusable as error:
            yield Refused(place, place, str(error))


def pairs_of(path: Path, parse: Callable[[str], tuple[str, str]], refused: list[Refused]) -> dict[str, str]:
    """Of a file with an id and a text or a path in every line, the second by the first; `parse` makes both of a line.

    Lines that it raises Unusable for are put to `refused`, and ids of which there are two. Raises: UserError for a file
    that cannot be read.
    """
    pairs: dict[str, str] = {}
    twice = set()
    for pair in parsed_lines(path, parse):
        if isinstance(pair, Refused):
            refused.append(pair)
        elif pairs.setdefault(*pair) != pair[1]:
            twice.add(pair[0])
    refused += [Refused(name, f"{path}: {name}", "two lines that differ; expected one") for name in sorted(twice)]
    return {name: value for name, value in pairs.items() if name not in twice}


def entry(name: str, path: Path, text: str, *, speaker: str, source: str) -> Record | Refused:
    """The record of an utterance, its duration not known yet; a Refused where it has no text."""
    if not text:
        return Refused(name, str(path), "no text in the transcript")
    return Record(name, str(path), text, speaker=speaker, source=source)


def read_splits(splits: Mapping[str, Entries]) -> tuple[dict[str, list[Record]], list[Refused]]:
    """The records of every split, with durations in seconds from their audio's headers, and what was left out.

    Raises: UserError where there is no record in any of them.
    """
    found: dict[str, list[Record]] = {}
    refused: list[Refused] = []
    for split, entries in splits.items():
        probed = in_threads(_with_duration, list(entries), split)
        found[split] = [item for item in probed if isinstance(item, Record)]
        refused += [item for item in probed if isinstance(item, Refused)]
    if not any(found.values()):
        first = f"; the first: {refused[0].location}: {refused[0].reason}" if refused else ""
        raise UserError(f"no utterance with audio and text in {', '.join(found)}{first}; unpack the corpus anew")
    return found, refused


def _with_duration(item: Record | Refused) -> Record | Refused:
    if isinstance(item, Refused):
        return item
    try:
        duration_s = probe(item.location).duration_s
    except AudioError as error:
        return Refused(item.id, item.location, error.reason)
    if not duration_s:
        return Refused(item.id, item.location, "no samples")
    return replace(item, duration_s=round(duration_s, 6))


def write_splits(out: Path, found: Mapping[str, Sequence[Record]], refused: Sequence[Refused]) -> None:
    """Writes `OUT/manifests/<split>.jsonl`, and `OUT/skipped.jsonl` (`{id, location, reason}` a line) where something
    was left out; says how much there is of each."""
    for split, records in found.items():
        if not records:
            print(f"{split}: no utterance; no manifest written")
            continue
        path = out / "manifests" / f"{split}.jsonl"
        write_manifest(path, records)
        hours = sum(record.duration_s for record in records) / 3600
        speakers = len({record.speaker for record in records})
        print(f"{path}: {len(records)} utterances, {hours:.2f} h, {speakers} speakers")
    skipped = out / "skipped.jsonl"
    skipped.unlink(missing_ok=True)
    if refused:
        lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in refused)
        skipped.write_text("".join(lines), encoding="utf-8")
        _tell(refused)
        print(f"skipped: {len(refused)}, each with its reason in {skipped}")


def _tell(refused: Iterable[Refused]) -> None:
    by_reason: dict[str, list[str]] = {}
    for item in refused:
        by_reason.setdefault(item.reason, []).append(item.id)
    for reason, ids in by_reason.items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        print(f"{len(ids)} skipped, {reason}: {', '.join(ids[:SHOWN_IDS])}{more}")
