"""Values of JSON files: one per line, an array of them, or an object of named ones."""

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.paths import quoted
from asr_jax.core.text_files import MARK, OtherText, TextError, check_encoding, text_of
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.fields import InvalidEntry

PEEKED = 1 << 16
AUDIOS = re.compile(rb'\{[^\[]*"audios"\s*:\s*\[\s*\{')
"""Beginning of the JSON of GigaSpeech and WenetSpeech."""
SPACES = re.compile(r"\s*")


def objects(path: str) -> Iterator[tuple[int, Any]]:
    """Yields values with their line, or position in the array, from 1. A line that is not JSON is an InvalidEntry.

    A line may have several objects.

    Raises:
        UserError: If the file cannot be read, or is one object that contains the utterances in lists.
    """
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            check_encoding(start := file.read(PEEKED))
            start = start.removeprefix(MARK).lstrip()
            if AUDIOS.match(start):
                raise UserError(_of_segments(path))
            file.seek(0)
            if start.startswith(b"["):
                yield from enumerate(_array(path, file.read()), 1)
                return
            if start.startswith(b"{") and (named := _named(path, file)):
                yield from named
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line := line.strip():
                    yield from ((number, value) for value in values_of(line))
    except OtherText as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read as a manifest: {reason}; check that it is complete") from None


def _named(path: str, file: Any) -> list[tuple[int, Any]]:
    """Objects of a file `{id: {…}, …}`, as SpeechBrain writes it. Empty for other files."""
    try:
        first = json.loads(file.readline().removeprefix(MARK))
        _check_no_list(path, first)
        if not all(isinstance(value, dict) for value in first.values()):
            return []  # one object per line
    except (ValueError, RecursionError):
        pass
    file.seek(0)
    try:
        whole = json.loads(text_of(file.read()))
    except (ValueError, RecursionError):
        return []
    _check_no_list(path, whole)
    if not whole or not all(isinstance(value, dict) for value in whole.values()):
        return []
    return [(number, speechbrain(name, value)) for number, (name, value) in enumerate(whole.items(), 1)]


def _check_no_list(path: str, found: dict[str, Any]) -> None:
    """Checks that an object is not a list of utterances with a name."""
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict) and not found.keys() & f.KNOWN:
            raise UserError(
                f"{path} is one object with a list {name!r}: expected one utterance per line, such as {f.EXAMPLE}: "
                f"jq -c '.{name}[]' {quoted(path)} > OUT.jsonl"
            )


def speechbrain(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of an object of SpeechBrain, whose `length` is in seconds."""
    found = {"id": name} | fields
    if "length" in found and "duration" not in found:
        found["duration"] = found.pop("length")
    return found


def values_of(line: bytes) -> list[Any]:
    """Returns the values of a line, usually one; an InvalidEntry if it is not JSON."""
    try:
        text = text_of(line)
        return [json.loads(text)]
    except TextError as error:
        return [InvalidEntry(str(error))]
    except RecursionError:
        return [InvalidEntry("JSON is nested too deeply")]
    except ValueError as error:
        return _several(text) or [InvalidEntry(f"not JSON ({error}){_hint(line, str(error))} Expected {f.EXAMPLE}")]


def _several(text: str) -> list[Any]:
    """Objects that follow each other on a line. Empty for other lines."""
    decoder, values, place = json.JSONDecoder(), list[Any](), 0
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            values.append(value)
            place = SPACES.match(text, place).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return []
    return values if all(isinstance(value, dict) for value in values) else []


def _hint(line: bytes, error: str) -> str:
    """Probable cause of an error, and its fix."""
    if "escape" in error:
        return "; write / or \\\\ for the backslashes of Windows paths."
    if line.endswith(b"}"):
        return ""
    return (
        "; the line ends early: the file may be truncated, or one object may be on several lines: jq -c . IN > OUT "
        "writes one per line."
    )


def _of_segments(path: str) -> str:
    """Reason and fix for the JSON of GigaSpeech and WenetSpeech, which has the segments of all sets."""
    fields = "{id: .sid, audio_path: $audio, start: .begin_time, end: .end_time, text: (.text_tn // .text)}"
    segments = '.audios[] | .path as $audio | .segments[] | select(.subsets | index("{XS}"))'
    out = f"{os.path.splitext(path)[0]}.XS.jsonl"
    return (
        f"{path} is the JSON of GigaSpeech or WenetSpeech, with recordings of all sets: expected one utterance of one "
        f"set per line. For the set XS: jq -c '{segments} | {fields}' {quoted(path)} > {quoted(out)}"
    )


def _array(path: str, content: bytes) -> list[Any]:
    try:
        return json.loads(text_of(content))
    except TextError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not a JSON array ({error}); the file may be truncated. Expected objects: [{f.EXAMPLE}, …]"
        ) from None
