"""Reads the times of spoken words: CTM files, and the JSON lines of `asr_jax.align`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.text_files import TextError, read_lines
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.metrics.latency import TimedWord
from asr_jax.transcripts.files import ctm_labels, form_of


class _Named(NamedTuple):
    """A word with the name of its recording: the id in JSON; the name and the number of the channel in CTM."""

    recording: str
    word: TimedWord


def spoken_words(paths: Sequence[Path], utterances: Sequence[Utterance]) -> dict[str, list[TimedWord]]:
    """Returns the spoken words of each recording, by its id. Recordings without an alignment are missing.

    A CTM file has the names and channels that this package writes (`ctm_labels`), or ids.

    Args:
        paths: Files of alignments: CTM or JSON, by their endings.
        utterances: Recordings of a set.

    Raises:
        UserError: If a file cannot be read, or if no recording has an alignment.
    """
    found: dict[str, list[TimedWord]] = {}
    for path in paths:
        for named in _read(path):
            found.setdefault(named.recording, []).append(named.word)
    labels = ctm_labels([(each.id, each.location) for each in utterances])
    spoken = {}
    for utterance, label in zip(utterances, labels, strict=True):
        channel = (Location.parse(utterance.location).channel or 0) + 1
        names = utterance.id, f"{label} {channel}", f"{utterance.id} {channel}"
        if words := next((found[name] for name in names if name in found), None):
            spoken[utterance.id] = words
    if utterances and not spoken:
        example = f", such as {next(iter(found)).partition(' ')[0]}" if found else ""
        raise UserError(
            f"{' '.join(map(str, paths))}: {counted(len(found), 'recording')}{example}; expected recordings of the "
            f"set, such as {utterances[0].id}"
        )
    return spoken


def _read(path: Path) -> Iterator[_Named]:
    form = form_of(path.name)
    if form not in ("ctm", "json"):
        raise UserError(f"{path}: expected a file of alignments with the ending .ctm, .json or .jsonl")
    parse = _of_ctm if form == "ctm" else _of_json
    try:
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip() or (form == "ctm" and line.startswith(";;")):
                continue
            try:
                yield from parse(line)
            except (ValueError, KeyError, TypeError):
                expected = "recording channel start duration word" if form == "ctm" else "a line of asr_jax.align"
                raise UserError(f"{path}:{number}: {line[:80]!r}: expected {expected}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except TextError as error:
        raise UserError(f"{path}: {error}") from None


def _of_ctm(line: str) -> Iterator[_Named]:
    recording, channel, start, duration, text = line.split()[:5]
    start_s = float(start)
    yield _Named(f"{recording} {channel}", TimedWord(text, start_s, start_s + float(duration)))


def _of_json(line: str) -> Iterator[_Named]:
    values: Mapping[str, list[Mapping[str, str]]] = json.loads(line)
    for word in values["words"]:
        yield _Named(str(values["id"]), TimedWord(str(word["text"]), float(word["start_s"]), float(word["end_s"])))
