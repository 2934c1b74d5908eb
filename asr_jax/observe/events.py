"""Event log of a run, events.jsonl, with one JSON object per line.

The progress bar, TensorBoard, curves and reports only use these events. They can therefore be reproduced from the file.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypedDict, runtime_checkable

import numpy as np

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.text_files import json_line
from asr_jax.observe.event_fields import EVENTS

FILE_NAME = "events.jsonl"


def events_beside(output: Path) -> Path:
    """Returns the file for the events of a command, beside the file or folder that the command writes."""
    path = Path(os.path.abspath(output))  # `.` has no name
    return path.with_name(f"{path.name.removesuffix(path.suffix)}.{FILE_NAME}")


class Event(TypedDict):
    """One line of the file."""

    event: str
    """A name of `EVENTS`."""
    timestamp_ms: int
    """Unix time in milliseconds."""
    data: dict[str, Any]
    """Fields of the event. `elapsed_s` is the time of the run in seconds, summed over its jobs."""


@runtime_checkable
class Sink(Protocol):
    """Receiver of each event after it is written."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """Appends events to a file, one complete line at a time, and then passes them to the sinks.

    A process that is killed leaves complete lines. An incomplete line, for example of a full disk, is removed when the
    file is opened again. If `enabled` is False, as on processes other than the main one, nothing is written or passed
    on.
    """

    def __init__(self, path: str | PathLike[str], *, enabled: bool = True, sinks: Sequence[Sink] = ()) -> None:
        self.path = Path(path)
        self.sinks = sinks if enabled else ()
        self._file: BinaryIO | None = None
        self._start_s = time.monotonic()
        self.last = ""
        """Name of the last event, of this job or of the previous one."""
        if enabled:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
            if event := _repair(self._file):
                self.last = event["event"]
                self._start_s -= float(event["data"].get("elapsed_s", 0.0))

    @property
    def elapsed_s(self) -> float:
        """Time of the run so far in seconds, summed over its jobs."""
        return time.monotonic() - self._start_s

    def write(self, name: str, **data: Any) -> None:
        """Appends one event.

        NumPy and JAX numbers and arrays are accepted. Numbers that are not finite become null, and the field
        `not_finite` lists their dotted names.

        Args:
            **data: Fields of the event.

        Raises:
            ValueError: If `name` is not in `EVENTS`.
            TypeError: If JSON cannot represent a value.
        """
        if name not in EVENTS:
            raise ValueError(f"event {name!r} is not one of {', '.join(EVENTS)}{nearest(name, EVENTS)}")
        if self._file is None:
            return
        not_finite: list[str] = []
        plain = _plain(data, name="", not_finite=not_finite)
        if not_finite:
            plain["not_finite"] = not_finite
        plain["elapsed_s"] = round(self.elapsed_s, 3)
        event = Event(event=name, timestamp_ms=time.time_ns() // 1_000_000, data=plain)
        try:
            self._file.write(json_line(event).encode())
            self._file.flush()
        except OSError as error:  # The system's error does not name the file.
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.last = name
        for sink in self.sinks:
            sink(event)

    def close(self) -> None:
        """Closes the file and the sinks; a second call does nothing."""
        if self._file is None:
            return
        with suppress(OSError):  # a full disk, which `write` has already reported
            self._file.close()
        self._file = None
        for sink in self.sinks:
            sink.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(path: str | PathLike[str], *names: str) -> Iterator[Event]:
    """Yields the events of a file in order. An incomplete last line is ignored.

    Args:
        *names: Names of the events to read. Default: all.

    Raises:
        UserError: If the file is missing, or a line other than the last is not an event.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115  the generator below closes it
    except OSError as error:
        raise UserError(f"{path}: cannot read events ({error.strerror}); expected the {FILE_NAME} of a run") from error
    with file:
        for number, line in enumerate(file, start=1):
            event = event_of(line)
            if event is None:
                if not line.endswith(b"\n"):
                    return
                raise UserError(f"{path}:{number}: not an event: {line[:60]!r}; repair or delete this line")
            if not names or event["event"] in names:
                yield event


def event_of(line: bytes) -> Event | None:
    """Returns the event of a line; None for a line that is not one."""
    try:
        event = json.loads(line)
        return event if event["event"] and isinstance(event["data"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _repair(file: BinaryIO) -> Event | None:
    """Removes an incomplete last line, or ends a complete one with a newline. Returns the last event."""
    end, last = 0, b""
    file.seek(0)
    for line in file:
        if line.endswith(b"\n") or event_of(line):
            end, last = end + len(line), line
    file.truncate(end)
    if last and not last.endswith(b"\n"):
        file.write(b"\n")
        file.flush()
    return event_of(last)


def _plain(value: Any, *, name: str, not_finite: list[str]) -> Any:
    """Converts a value to JSON types and appends the dotted names of numbers that are not finite to `not_finite`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        not_finite.append(name)
        return None
    if isinstance(value, Mapping):
        prefix = f"{name}." if name else ""
        return {str(key): _plain(part, name=f"{prefix}{key}", not_finite=not_finite) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, name=f"{name}.{i}", not_finite=not_finite) for i, part in enumerate(value)]
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist(), name=name, not_finite=not_finite)
    raise TypeError(f"event field {name!r}: JSON has no {type(value).__name__}; use numbers, text, lists or dicts")
