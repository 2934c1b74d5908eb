"""Values of JSON files: one per line, an array of them, or an object of named ones."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import MARK, OtherText, TextError, check_encoding, text_of
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.fields import InvalidEntry


def objects(path: str) -> Iterator[tuple[int, Any]]:
    """Yields values with their line, or position in the array, from 1. A line that is not JSON is an InvalidEntry."""
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            check_encoding(start := file.read(64))
            start = start.removeprefix(MARK).lstrip()
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
                    yield number, value_of(line)
    except FileNotFoundError:
        raise UserError(f"{path}: no such manifest; check the path (relative paths start at {os.getcwd()})") from None
    except OtherText as error:
        raise UserError(f"{path}: {error}") from None
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
        whole = json.loads(text_of(file.read()))
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


def value_of(line: bytes) -> Any:
    """Returns the value of a line; an InvalidEntry if it is not JSON."""
    try:
        return json.loads(text_of(line))
    except TextError as error:
        return InvalidEntry(str(error))
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
        return json.loads(text_of(content))
    except TextError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not a JSON array ({error}); the file may be truncated. Expected objects: [{f.EXAMPLE}, …]"
        ) from None
