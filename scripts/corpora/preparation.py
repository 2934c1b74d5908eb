"""Shared parts of corpus preparation: lines are read, audio is probed, and manifests and rejected.jsonl are written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asr_jax.audio.io import AudioError, probe
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import counted
from asr_jax.core.text_files import json_line
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.readers.base import Entries
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.text_tables import text_lines
from asr_jax.data.manifests.utterances import Rejected, Utterance

SHOWN_IDS = 5


def parsed_lines[T](path: Path, parse: Callable[[str], T]) -> Iterator[T | Rejected]:
    """Yields `parse(line)` for every line that is not blank.

    Yields a Rejected instead if `parse` raises InvalidEntry or the line is not UTF-8.

    Raises:
        UserError: If the file cannot be read.
    """
    for number, line in text_lines(str(path)):
        place = f"{path}:{number}"
        try:
            if isinstance(line, InvalidEntry):
                raise line
            yield parse(line)
        except InvalidEntry as error:
            yield Rejected(place, place, str(error))


def pairs_of(path: Path, parse: Callable[[str], tuple[str, str]], rejected: list[Rejected]) -> dict[str, str]:
    """Reads a file with an id and a value, a text or a path, in every line.

    Args:
        path: File to read.
        parse: Splits a line into id and value.
        rejected: Receives lines for which `parse` raises InvalidEntry, and ids with two different values.

    Returns:
        Values by id.

    Raises:
        UserError: If the file cannot be read.
    """
    pairs: dict[str, str] = {}
    twice = set()
    for pair in parsed_lines(path, parse):
        if isinstance(pair, Rejected):
            rejected.append(pair)
        elif pairs.setdefault(*pair) != pair[1]:
            twice.add(pair[0])
    rejected += [Rejected(name, f"{path}: {name}", "two lines that differ; expected one") for name in sorted(twice)]
    return {name: value for name, value in pairs.items() if name not in twice}


def entry(name: str, path: Path, text: str, *, speaker: str, source: str) -> Utterance | Rejected:
    """Utterance of unknown duration, or a Rejected if it has no text.

    Args:
        name: Id of the utterance.
        path: Audio file.
        text: Transcript.
        speaker: Id of the speaker.
        source: Name of the corpus.
    """
    if not text:
        return Rejected(name, str(path), "no text in the transcript")
    return Utterance(name, str(path), text, speaker=speaker, source=source)


def read_splits(splits: Mapping[str, Entries]) -> tuple[dict[str, list[Utterance]], list[Rejected]]:
    """Probes the audio of every split. Returns utterances with durations in seconds by split, and rejected ones.

    Raises:
        UserError: If no split has an utterance.
    """
    found: dict[str, list[Utterance]] = {}
    rejected: list[Rejected] = []
    for split, entries in splits.items():
        probed = in_threads(_with_duration, list(entries), split)
        found[split] = [item for item in probed if isinstance(item, Utterance)]
        rejected += [item for item in probed if isinstance(item, Rejected)]
    if not any(found.values()):
        first = f"; the first rejected one: {rejected[0].location}: {rejected[0].reason}" if rejected else ""
        raise UserError(f"no utterance with audio and text in {', '.join(found)}{first}; unpack the corpus again")
    return found, rejected


def _with_duration(item: Utterance | Rejected) -> Utterance | Rejected:
    if isinstance(item, Rejected):
        return item
    try:
        duration_s = probe(item.location).duration_s
    except AudioError as error:
        return Rejected(item.id, item.location, error.reason)
    if not duration_s:
        return Rejected(item.id, item.location, "no samples")
    return replace(item, duration_s=round(duration_s, 6))


def write_splits(out: Path, found: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected]) -> None:
    """Writes `OUT/manifests/<split>.jsonl` and, if utterances are rejected, `OUT/rejected.jsonl`, and prints a summary.

    A line of rejected.jsonl has at least `{id, location, reason}`.

    Args:
        out: Output folder.
        found: Utterances by split.
        rejected: Rejected utterances.
    """
    for split, utterances in found.items():
        if not utterances:
            print(f"{split}: no utterances, and no manifest is written")
            continue
        path = out / "manifests" / f"{split}.jsonl"
        write_manifest(path, utterances)
        hours = sum(utterance.duration_s for utterance in utterances) / 3600
        speakers = len({utterance.speaker for utterance in utterances})
        print(f"{path}: {counted(len(utterances), 'utterance')}, {hours:.2f} h, {counted(speakers, 'speaker')}")
    path = out / "rejected.jsonl"
    path.unlink(missing_ok=True)
    if rejected:
        write_whole(path, "".join(json_line(item.to_json()) for item in rejected))
        _print_reasons(rejected)
        print(f"rejected: {len(rejected)}, each with its reason in {path}")


def _print_reasons(rejected: Iterable[Rejected]) -> None:
    by_reason: dict[str, list[str]] = {}
    for item in rejected:
        by_reason.setdefault(item.reason, []).append(item.id)
    for reason, ids in by_reason.items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        print(f"{len(ids)} rejected, {reason}: {', '.join(ids[:SHOWN_IDS])}{more}")
