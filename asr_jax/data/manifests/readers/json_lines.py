"""Readers of JSONL and JSON: our own manifests, those of NeMo, lhotse and QuartzNet, and ready features.

Our own lines are `{"audio_path": "a.flac", "text": "hello", "duration": 1.5}`, optionally with `id speaker source
offset channel tokens`, or with `features_path rows cols` instead of `audio_path`.
"""

import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers import entries, lhotse, quartznet
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry, not_utf8
from asr_jax.data.manifests.readers.nemo_tars import NemoTars
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected

ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".manifest")
MARK = b"\xef\xbb\xbf"


def is_json(path: str) -> bool:
    if path.lower().endswith(".list") and os.path.isfile(path):  # WeNet's; other lists have a path per line
        with open(path, "rb") as file:
            return file.read(1) == b"{"
    return path.lower().endswith(ENDINGS) and not os.path.isdir(path)


def files(path: str, options: ReadOptions) -> list[str]:
    """The file, and supervisions of lhotse or tars of NeMo that belong to it."""
    folder, name = os.path.split(path)
    supervisions = os.path.join(folder, name.replace("recordings", "supervisions"))
    tars = sorted(glob.glob(os.path.join(glob.escape(folder), "audio_*.tar"))) if "tarred" in name else []
    return [path, *([supervisions] if supervisions != path and os.path.exists(supervisions) else []), *tars]


def read_json(path: str, unpacked: Unpacked, options: ReadOptions, *, once: bool = False) -> Entries:
    """Reads a file with one object per line, or with one array of objects; with gzip if its name ends in .gz.

    Args:
        path: File to read.
        unpacked: File for features that the objects contain.
        options: Options of reading.
        once: Whether an utterance that exists at several speeds is read only at its original speed.

    Raises:
        UserError: If the file cannot be read.
    """
    of_recordings: dict[str, list[f.Fields]] = {}
    tarred = NemoTars()
    for number, value in objects(path):
        place = f"{path}:{number}"
        try:
            if isinstance(value, InvalidEntry):
                raise value
            if not isinstance(value, dict):
                raise InvalidEntry(f"a JSON {type(value).__name__}; expected an object: {f.EXAMPLE}")
            if "recording_id" in value and "start" in value:
                raise InvalidEntry("a supervision of lhotse without its recording: expected the recordings beside it")
            if "sources" in value and "sampling_rate" in value:
                of_recordings = of_recordings or lhotse.supervisions_beside(path)
                for cut in lhotse.cuts_of(value, of_recordings):
                    yield from lhotse.utterances(cut, options)
            elif "shard_id" in value:
                yield tarred.utterance(value, path, options)
            elif "supervisions" in value or "tracks" in value:
                yield from lhotse.utterances(value, options)
            elif "files" in value and "transcript" in value:
                yield from quartznet.utterances(value, once=once)
            else:
                yield entries.utterance(value, unpacked, options, name=_name(value, place))
        except InvalidEntry as error:
            name = f.first(value, f.ID) if isinstance(value, dict) else None
            yield Rejected(name if isinstance(name, str) else place, place, str(error))


def details(path: str) -> str:
    """System whose JSON a file has, by its first object, and the fields that are used. Empty if it has none."""
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            start = file.read(PEEKED).removeprefix(MARK).decode(errors="ignore").lstrip().removeprefix("[").lstrip()
        value, _ = json.JSONDecoder().raw_decode(start)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return ""
    if not isinstance(value, dict) or not value:
        return ""
    if all(isinstance(each, dict) for each in value.values()):
        return f"JSON of SpeechBrain ({f.used(next(iter(value.values())))})"
    name = next((name for name, keys in SYSTEMS.items() if keys <= value.keys()), "JSON")
    used = f.used(value)
    return f"{name} ({used})" if used and not name.startswith("lhotse") else name


PEEKED = 1 << 20
"""Number of bytes in which the first object is looked for."""
SYSTEMS = {
    "lhotse's recordings and supervisions": {"sources", "sampling_rate"},
    "lhotse's cuts": {"supervisions", "recording"},
    "NeMo's tarred manifest": {"shard_id"},
    "JSON of NVIDIA, with a file for each speed": {"files", "transcript"},
    "WeNet's list": {"key", "wav"},
    "JSON of NeMo": {"audio_filepath"},
}
"""Fields by which the JSON of a system is recognised."""
JSON = Reader("JSON", is_json, files, read_json, details=details)
JSON_ONCE = Reader("JSON at one speed", is_json, files, partial(read_json, once=True), details=details)
"""Reader for validation and evaluation, which count an utterance once."""


def looks_like_manifest(path: str) -> bool:
    """Whether a JSON file begins with an array, or with a line that is an object with a known field."""
    with open(path, "rb") as file:
        line = file.readline().removeprefix(MARK).strip()
    value = None if line.startswith(b"[") else _value(line)
    return value is None or (isinstance(value, dict) and bool(value.keys() & (f.KNOWN | {"files", "supervisions"})))


def _name(fields: dict[str, Any], place: str) -> str:
    path = f.first(fields, f.AUDIO_PATH)
    return path if isinstance(path, str) and path else place


def objects(path: str) -> Iterator[tuple[int, Any]]:
    """Yields values with their line, or position in the array, from 1. A line that is not JSON is an InvalidEntry."""
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            start = file.read(64).removeprefix(MARK).lstrip()
            file.seek(0)
            if start.startswith(b"["):
                yield from enumerate(_array(path, file.read()), 1)
                return
            if start.startswith(b"{") and (named := _named(file)):
                yield from named
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line := line.strip():
                    yield number, _value(line.removeprefix(MARK) if number == 1 else line)
    except FileNotFoundError:
        raise UserError(f"{path}: no such manifest; check the path (relative paths start at {os.getcwd()})") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read as a manifest: {reason}; check that it is complete") from None


def _named(file: Any) -> list[tuple[int, Any]]:
    """Objects of a file `{id: {…}, …}`, as SpeechBrain writes it. Empty for other files."""
    try:
        first = json.loads(file.readline().removeprefix(MARK))
        if not all(isinstance(value, dict) for value in first.values()):
            return []  # one object per line
    except (ValueError, RecursionError):
        pass
    file.seek(0)
    try:
        whole = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return []
    if not whole or not all(isinstance(value, dict) for value in whole.values()):
        return []
    return [(number, speechbrain(name, value)) for number, (name, value) in enumerate(whole.items(), 1)]


def speechbrain(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of an object of SpeechBrain, whose `length` is in seconds."""
    found = {"id": name} | fields
    if "length" in found and "duration" not in found:
        found["duration"] = found.pop("length")
    return found


def _value(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        return InvalidEntry(not_utf8(line, error))
    except ValueError as error:
        cut = (
            ""
            if line.endswith(b"}")
            else "; the line ends early: the file may be truncated, or one object may be on several lines."
        )
        return InvalidEntry(f"not JSON ({error}){cut} Expected {f.EXAMPLE}")
    except RecursionError:
        return InvalidEntry("JSON is nested too deeply")


def _array(path: str, content: bytes) -> list[Any]:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {not_utf8(content, error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not a JSON array ({error}); the file may be truncated. Expected objects: [{f.EXAMPLE}, …]"
        ) from None
