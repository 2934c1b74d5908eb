"""Progress of long work on audio: a bar on a terminal, otherwise a line every 30 seconds."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from asr_jax.observe.progress import clock

EVERY_S = 30.0
"""Seconds between lines if there is no terminal."""


class Meter:
    """Context manager that shows on standard error how many seconds of audio are done.

    Args:
        has_bar: Whether to show a bar on a terminal; False if results are printed to the terminal.
    """

    def __init__(self, total_s: float, *, has_bar: bool = True) -> None:
        self.total_s, self.done_s = total_s, 0.0
        self._start_s = self._printed_s = time.monotonic()
        self._bar: Progress | None = None
        if has_bar and sys.stderr.isatty():
            columns = (TextColumn("{task.fields[done]}"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._task = self._bar.add_task("", total=total_s, done="")

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._start_s

    def add(self, seconds: float) -> None:
        """Adds seconds of audio that are done."""
        self.done_s = min(self.done_s + seconds, self.total_s)
        if self._bar:
            self._bar.update(self._task, completed=self.done_s, done=str(self))
        elif time.monotonic() - self._printed_s > EVERY_S:
            self._printed_s = time.monotonic()
            print(self, file=sys.stderr, flush=True)

    def __str__(self) -> str:
        """Returns a line such as `0:30:12 of 1:00:00 of audio, 43 × real time`."""
        speed = self.done_s / max(self.took_s, 1e-9)
        return f"{_clock(self.done_s)} of {_clock(self.total_s)} of audio, {speed:.3g} × real time"

    def __enter__(self) -> "Meter":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


def _clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)
