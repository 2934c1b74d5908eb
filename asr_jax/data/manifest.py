"""Manifests: one JSON object per line, read into records and written from them. No audio is opened but to probe."""

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from asr_jax.audio.io import AudioError, probe
from asr_jax.core.errors import UserError, nearest

PathLike = str | os.PathLike[str]

FIELDS = {"audio_path": str, "text": str, "duration": float, "id": str, "speaker": str, "source": str}
REQUIRED = ("audio_path", "text")
EXAMPLE = '{"audio_path": "a.flac", "text": "hello", "duration": 1.5}'
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One utterance; its audio has not been opened."""

    id: str
    """Names the record in messages, transcripts and skipped.jsonl; unique within what was read together."""
    audio_path: str
    """Absolute."""
    text: str
    duration_s: float
    """NaN where the manifest has none and the file's header could not be read."""
    speaker: str = ""
    source: str = ""


def read_manifest(path: PathLike) -> list[Record]:
    """Records of a JSONL file with `audio_path`, `text`, `duration` (seconds) and, optionally, `id speaker source`.

    A relative `audio_path` is relative to the manifest's folder or, where the first files are not there, to the
    folder above it (a data set that keeps its manifests in a folder of their own). Without `duration` it is read
    from the audio's header; without `id` the id is `audio_path`. Other fields are ignored, blank lines too.

    Raises: UserError, naming file and line, for what is not UTF-8, not JSON or has wrong fields, and for no records.
    """
    with closing(_lines(path)) as lines:
        parsed = (_parse(line, path, number) for number, line in lines)
        first = list(islice(parsed, 100))
        if not first:
            raise UserError(f"{path} has no records; expected one JSON object per line: {EXAMPLE}")
        root = _audio_root(path, [fields["audio_path"] for fields in first])
        return [_record(fields, root) for fields in chain(first, parsed)]


def read_manifests(paths: Sequence[PathLike]) -> list[Record]:
    """Records of several manifests, one after the other; ids that repeat get `#2`, `#3` … and are reported once."""
    return unique_ids(record for path in paths for record in read_manifest(path))


def unique_ids(records: Iterable[Record]) -> list[Record]:
    """The records in order, every id once: its later ones get a suffix, so that no record is lost over its name."""
    records = list(records)
    taken = {record.id for record in records}
    seen: Counter[str] = Counter()
    renamed = []
    for row, record in enumerate(records):
        seen[record.id] += 1
        if seen[record.id] == 1:
            continue
        while (name := f"{record.id}#{seen[record.id]}") in taken:
            seen[record.id] += 1
        taken.add(name)
        renamed.append(record.id)
        records[row] = Record(name, record.audio_path, record.text, record.duration_s, record.speaker, record.source)
    if renamed:
        logger.warning("%d ids repeat (first: %s): their later records got #2, #3 …", len(renamed), renamed[0])
    return records


def write_manifest(path: PathLike, records: Iterable[Record]) -> None:
    """Writes what `read_manifest` reads, whole or not at all.

    Audio under the manifest's folder, or under the folder above it, is written relative to the manifest.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    partial = f"{os.fspath(path)}.partial"
    with open(partial, "w", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(json.dumps(_fields(record, folder), ensure_ascii=False) + "\n")
    os.replace(partial, path)


def _lines(path: PathLike) -> Generator[tuple[int, str]]:
    """Lines that are not blank with their numbers from 1, without a byte-order mark or line ends."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: not UTF-8 (byte {line[error.start]:#04x} at {error.start}); save it as UTF-8"
                    ) from None
                if text:
                    yield number, text
    except FileNotFoundError:
        raise UserError(f"{path}: no such manifest; check the path (relative ones start at {os.getcwd()})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a manifest: {error.strerror}") from None


def _parse(line: str, path: PathLike, number: int) -> dict[str, Any]:
    """The known fields of a line, checked."""
    try:
        value = json.loads(line)
    except ValueError as error:
        cut = "" if line.endswith("}") else "; the line ends early: is the file cut?"
        raise UserError(f"{path}:{number}: not JSON ({error}){cut} Expected {EXAMPLE}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: a JSON {type(value).__name__}; expected an object: {EXAMPLE}")
    for name in REQUIRED:
        if name not in value:
            there = ", ".join(map(repr, value)) or "none"
            raise UserError(
                f'{path}:{number}: no "{name}" among its fields ({there}){nearest(name, value)} Expected {EXAMPLE}'
            )
    return {
        name: _typed(value[name], name, f"{path}:{number}")
        for name in FIELDS
        if name in REQUIRED or value.get(name) is not None
    }


def _typed(value: Any, name: str, place: str) -> Any:
    if FIELDS[name] is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f'{place}: "{name}" is {json.dumps(value)}; expected a finite number of seconds')
        return float(value)
    if name in ("id", "speaker") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or (name == "audio_path" and not value):
        raise UserError(f'{place}: "{name}" is {json.dumps(value)}; expected a string')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f'{place}: "{name}" is {json.dumps(value)}, which holds half a character') from None
    return value


def _audio_root(path: PathLike, audio_paths: Sequence[str]) -> str:
    """The folder that relative audio paths start from, found by the first ones that exist."""
    folder = os.path.dirname(os.path.abspath(path))
    above = os.path.dirname(folder)
    for audio_path in (name for name in audio_paths if not os.path.isabs(name)):
        for root in (folder, above):
            if os.path.exists(os.path.join(root, audio_path)):
                return root
    return folder


def _record(fields: dict[str, Any], root: str) -> Record:
    audio_path = os.path.normpath(os.path.join(root, fields["audio_path"]))
    duration_s = fields["duration"] if "duration" in fields else _probed_s(audio_path)
    name = fields.get("id", fields["audio_path"])
    return Record(name, audio_path, fields["text"], duration_s, fields.get("speaker", ""), fields.get("source", ""))


def _probed_s(audio_path: str) -> float:
    try:
        return probe(audio_path).duration_s
    except AudioError:
        return math.nan


def _fields(record: Record, folder: str) -> dict[str, Any]:
    relative = os.path.relpath(record.audio_path, folder)
    is_near = not relative.startswith(os.path.join("..", ".."))
    audio_path = relative if is_near else record.audio_path
    fields: dict[str, Any] = {"id": record.id, "audio_path": audio_path, "text": record.text}
    if math.isfinite(record.duration_s):
        fields["duration"] = record.duration_s
    optional = {"speaker": record.speaker, "source": record.source}
    return fields | {name: value for name, value in optional.items() if value}
