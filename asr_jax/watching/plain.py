"""Events as plain lines, as they come, for pipes, logs and terminals without cursor control."""

import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from asr_jax.core.names import counted
from asr_jax.observe.events import Event
from asr_jax.observe.progress import ProgressView, clock
from asr_jax.observe.tables import console_for, say
from asr_jax.watching.state import DOING, ENDS
from asr_jax.watching.tail import Tail

Data = dict[str, Any]
POLL_S = 1.0


def print_events(
    paths: Sequence[Path],
    names: Sequence[str],
    *,
    stream: TextIO | None = None,
    wait: Callable[[], None] = lambda: time.sleep(POLL_S),
) -> None:
    """Prints the events of runs until all of them have ended.

    Lines of several runs begin with the run's name. A run has ended if its last event says so; a killed one has not.

    Args:
        paths: Files of events, which need not exist yet.
        names: Beginnings of the lines, if there are several runs.
        stream: Stream to print to. Default: standard output.
        wait: Called between two looks at the files.
    """
    tails = [Tail(path) for path in paths]
    prefixes = [f"{name}: " if len(names) > 1 else "" for name in names]
    printers = [_Printer(_Lines(stream or sys.stdout, prefix)) for prefix in prefixes]
    while True:
        for tail, printer in zip(tails, printers, strict=True):
            if tail.read():
                printer.show(tail)
        if all(printer.is_over for printer in printers):
            return
        wait()


class _Printer:
    """Prints the events of one run."""

    def __init__(self, stream: "_Lines") -> None:
        self._console, self.is_over = console_for(stream), False
        self._view, self._num, self._num_replaced, self._problem = self._new_view(), 0, 0, ""
        self._damage = ""

    def _new_view(self) -> ProgressView:
        return ProgressView(self._console, plain_every=1)

    def show(self, tail: Tail) -> None:
        """Prints events that were not printed yet. A file that was replaced is printed from its start."""
        if tail.problem != self._problem:
            self._problem = tail.problem
            say(
                self._console,
                f"{tail.path}: {tail.problem}; waiting for it" if tail.problem else f"reading {tail.path}",
            )
        if tail.num_replaced != self._num_replaced:
            say(self._console, f"{tail.path} was replaced; from its beginning:")
            self._view.close()
            self._view, self._num, self._num_replaced = self._new_view(), 0, tail.num_replaced
        if tail.damage not in ("", self._damage):
            say(self._console, f"{tail.path}: {tail.damage}")
        self._damage = tail.damage
        for event in tail.events[self._num :]:
            self._view(event)
            if line := _line(event):
                say(self._console, line)
            if event["event"] in DOING:
                self.is_over = DOING[event["event"]] in ENDS
        self._num = len(tail.events)
        if self.is_over:
            self._view.close()


def _line(event: Event) -> str:
    """Returns the line of an event that the progress of training does not print; empty for others."""
    data: Data = event["data"]
    match event["event"]:
        case "run_failed":
            return f"failed: {data['reason']}"
        case "extraction_start":
            done = f", {data['done']:,} of them done" * bool(data["done"])
            long = f", {data['skipped_long']:,} skipped as too long" * bool(data["skipped_long"])
            workers = f"{data['workers']} {data['kind']}"
            return f"{data['output']}: {counted(data['utterances'], 'utterance')}{done}{long}; {workers}, {data['on']}"
        case "extraction":
            last = data["last"]
            return (
                f"{data['output']}: {data['done']:,} of {counted(data['utterances'], 'utterance')} | "
                f"{data['audio_s_per_s']:,.1f} audio-s/s | shard {data['shard']} | last {last['id']} "
                f"({last['duration_s']:.1f} s): {last['text']}"
            )
        case "extracted":
            return f"{data['output']}: done, {counted(data['rejected'], 'rejected utterance')}"
        case "extraction_complete":
            return f"done: {counted(data['files'], 'file')} in {clock(data['elapsed_s'])}"
    return ""


class _Lines(io.TextIOBase):
    """Stream that is no terminal and writes complete lines to another one, each with a prefix."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream, self._prefix, self._rest = stream, prefix, ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        self._stream.write("".join(f"{self._prefix}{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
