"""events.jsonl: the true utterance of a run, one JSON object a line. The progress bar, TensorBoard, curves and reports
are made from these events alone, so whatever a person was shown can be made again from the file.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypedDict, runtime_checkable

import numpy as np

from asr_jax.core.errors import UserError, nearest

FILE_NAME = "events.jsonl"

EVENTS: dict[str, str] = {
    "run_start": "a job begins: run, num_updates, num_epochs, num_parameters, num_devices",
    "setting_changed": "the job continues a run with another value of a setting: setting, old, new",
    "resumed": "the job goes on from a checkpoint: update, data_position, path",
    "compile_start": "shapes: how many are compiled before the first update",
    "compiled": "one of them is done: number (from 1), shapes, bucket",
    "compile": "the bucket table: rows [{bucket, batch_size, flops, ..}], one per compiled shape",
    "rejected": "utterances were left out: count, reasons {reason: count}, files [the first ones], path of the whole list",
    "initialised": "weights were loaded: path, loaded, kept_rows, missing, mismatched, unused",
    "batch_start": "an update begins, at every log_every: update, epoch, batches [{position, shape, labels, audio_s}]",
    "optimizer_flush": "an update of fewer batches than others, at the end of an epoch: update, batches, accumulate",
    "voided": "updates that were not finite changed nothing: update, count, updates, path of their batches",
    "profile": "an XLA trace was written: path",
    "recompiled": "something was compiled after the first update: function, seconds, reason",
    "train_step": "means since the last one: update, epoch (from 1), losses {total, term: ..}, learning_rate, "
    "gradient_norm (before clipping), voided (updates so far that changed nothing), loss_scale (float16), "
    "throughput {metrics/throughput.py: rates}",
    "validation_start": "a validation begins: update, set, weights, utterances",
    "validation": "errors on a set: update, epoch, set (a short name), weights (live or ema), decoding (its digest), "
    "wer, cer, substitutions, deletions, insertions, words, utterances, rejected, by_source, empty_share, and "
    "what else metrics/scoring.py: score gives of the whole set, samples [{id, reference, hypothesis}]; of the loss, "
    "where it is asked for or nothing is recognised: loss, losses {term: ..}, metrics, loss_utterances",
    "samples": "transcripts between validations: update, samples [{id, reference, hypothesis}]",
    "checkpoint_saved": "a checkpoint is on disk: update, path",
    "warning": "what a person should look at: message, update, detector (its name), and what it measured",
    "job_stopped": "the job ends before its run: update, reason",
    "run_failed": "the job could not go on, or was interrupted: reason",
    "run_complete": "the job ends: update, reason, and what the summary holds",
}
"""Every event by name and what its data hold besides `elapsed_s`; further fields may be added, none are renamed."""


class Event(TypedDict):
    """One line of the file."""

    event: str
    """A name of `EVENTS`."""
    timestamp_ms: int
    """Unix time."""
    data: dict[str, Any]
    """Fields of the event; `elapsed_s` is the working time of the run, summed over its jobs."""


@runtime_checkable
class Sink(Protocol):
    """Who is told of each event after it was written."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """Appends events to a file, a whole line at a time, and then tells the sinks.

    A process that is killed leaves whole lines; a line that was cut (a full disk, a lost machine) is taken off when
    the file is opened again. Without `enabled` (processes that are not the main one) nothing is written nor told.
    """

    def __init__(self, path: str | PathLike[str], *, enabled: bool = True, sinks: Sequence[Sink] = ()) -> None:
        self.path = Path(path)
        self.sinks = sinks if enabled else ()
        self._file: BinaryIO | None = None
        self._start_s = time.monotonic()
        self.last = ""
        """Name of the last event, of this job or of the one before."""
        if enabled:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
            if event := _repair(self._file):
                self.last = event["event"]
                self._start_s -= float(event["data"].get("elapsed_s", 0.0))

    @property
    def elapsed_s(self) -> float:
        """Working time of the run so far, summed over its jobs."""
        return time.monotonic() - self._start_s

    def write(self, name: str, **data: Any) -> None:
        """Appends one event. NumPy and JAX numbers and arrays are accepted; numbers that are not finite become null
        and their dotted names are listed in `not_finite`.

        Raises: ValueError for a name that is not in `EVENTS`; TypeError for a value that JSON cannot hold.
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
        line = json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n"
        # File names that are not UTF-8 arrive as lone surrogates: the backslash form of those is valid JSON.
        try:
            self._file.write(line.encode("utf-8", "backslashreplace"))
            self._file.flush()
        except OSError as error:  # which has no name of the file
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.last = name
        for sink in self.sinks:
            sink(event)

    def close(self) -> None:
        """Closes the file and the sinks; a second call does nothing."""
        if self._file is None:
            return
        with suppress(OSError):  # a full disk, told of by `write` already
            self._file.close()
        self._file = None
        for sink in self.sinks:
            sink.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(path: str | PathLike[str], *names: str) -> Iterator[Event]:
    """Events of a file in the order written: those of `names`, or all of them. A cut last line is left out.

    Raises: UserError where the file is missing, or where a line other than the last is not an event.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115  the generator below closes it
    except OSError as error:
        raise UserError(f"{path}: cannot read events ({error.strerror}); expected the {FILE_NAME} of a run") from error
    with file:
        for number, line in enumerate(file, start=1):
            event = _parse(line)
            if event is None:
                if not line.endswith(b"\n"):
                    return
                raise UserError(f"{path}:{number}: not an event: {line[:60]!r}; mend or delete this line")
            if not names or event["event"] in names:
                yield event


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
        return event if event["event"] and isinstance(event["data"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _repair(file: BinaryIO) -> Event | None:
    """Takes off a cut last line, or ends a whole one; gives the last event."""
    end, last = 0, b""
    file.seek(0)
    for line in file:
        if line.endswith(b"\n") or _parse(line):
            end, last = end + len(line), line
    file.truncate(end)
    if last and not last.endswith(b"\n"):
        file.write(b"\n")
        file.flush()
    return _parse(last)


def _plain(value: Any, *, name: str, not_finite: list[str]) -> Any:
    """`value` as JSON can hold it; dotted names of numbers that are not finite are added to the list."""
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
    raise TypeError(f"event field {name!r}: JSON cannot hold a {type(value).__name__}; give numbers, text, lists, dict")
