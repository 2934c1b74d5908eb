"""A command in a process of its own, which a dashboard shows and does not own."""

import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType

from asr_jax.core.errors import UserError
from asr_jax.core.installation import installing
from asr_jax.core.paths import quoted
from asr_jax.core.run_folder import CONSOLE, EVENTS

POLL_S = 0.2
SHOWN_LINES = 40
"""Number of lines of the output that are printed after the dashboard is closed."""
PLAIN = "python -m asr_jax.watch RUN --plain prints plain lines of a run"
MISSING = f"the dashboard needs textual and textual-plot: {installing('watch')}; {PLAIN}"

NO_SCREEN = "--tui needs a terminal with colours (no pipe, no TERM=dumb, no NO_COLOR): lines follow instead"


def has_screen() -> bool:
    """Returns whether standard input and output are a terminal that can show a dashboard in colours."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def show_dashboard(paths: Sequence[Path], names: Sequence[str], *, is_over: Callable[[], bool] = lambda: False) -> int:
    """Shows a dashboard until the user quits, or until `is_over` returns True; prints why it ended if it failed.

    Args:
        paths: Files of events, which need not exist yet.
        names: Titles of the runs, which are shown until their events have one.
        is_over: Called in the thread of the interface, every second: it must not wait.

    Returns:
        The exit code of the dashboard: 0, or 1 if it failed.

    Raises:
        UserError: If a package is missing.
    """
    check_installed()
    from rich.console import Console

    from asr_jax.watching.dashboard import Dashboard  # imported late, since it is slow and other commands lack it

    log = os.dup(2)  # Textual draws on descriptor 2, which commands redirect to a file (core/native.py)
    os.dup2(sys.stderr.fileno(), 2)
    try:
        app, failure = Dashboard(paths, names, is_over=is_over), io.StringIO()
        app.error_console = Console(file=failure, markup=False)
        app.run()
    finally:
        os.dup2(log, 2)
        os.close(log)
    if app.return_code:
        # Textual draws a box around its traceback, with all local variables. The exception is below it.
        reason = " ".join(failure.getvalue().rpartition("╯")[2].split())
        print(f"error: the dashboard failed ({reason}); {PLAIN}", file=sys.stderr)
    return app.return_code or 0


def check_installed() -> None:
    """Raises a UserError if a package of the dashboard is missing."""
    if not all(importlib.util.find_spec(name) for name in ("textual", "textual_plot")):
        raise UserError(MISSING)


def run_with_dashboard(command: Sequence[str], events: Path, *, name: str) -> int:
    """Runs a command in a process of its own and shows its events; returns the exit code of the command.

    The output of the process is appended to a file beside its events. If the user quits the dashboard, the output is
    printed instead. SIGINT, SIGTERM and SIGUSR1 of this process are sent to the command. If this process ends, the
    command goes on.

    Args:
        events: File of the command's events. Its folder may not exist before the command makes it.
        name: Title of the run, which is shown until its events have one.

    Raises:
        UserError: If a package is missing. Nothing is started.
    """
    check_installed()
    output = _Output(events)
    with output.path.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # signals of the terminal do not reach it
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            if number == signal.SIGINT:  # as a terminal does: all processes of the command
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def has_ended() -> bool:
        output.settle()
        return process.poll() is not None

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        show_dashboard([events], [name], is_over=has_ended)
        if not has_ended():
            folder = events.parent if events.name == EVENTS else events
            print(
                f"the dashboard is closed and the command goes on (process {process.pid}); Ctrl-C stops it. "
                f"python -m asr_jax.watch {quoted(folder)} shows the dashboard again. The end of its output, "
                f"{output.place}:",
                flush=True,
            )
        output.print_last()
        while not has_ended():
            output.print_new()
            time.sleep(POLL_S)
        output.print_new()
        output.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = process.returncode
    return 128 - code if code < 0 else code


class _Output:
    """Output of a command. It is a hidden file beside a folder until the command makes that folder."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self.place = events.with_name(events.name.removesuffix(EVENTS) + CONSOLE)
        self.path = self.place
        is_run = events.name == EVENTS
        if not (events.exists() if is_run else events.parent.is_dir()):  # the command refuses folders with other files
            above = next(folder for folder in Path(os.path.abspath(events)).parents[is_run:] if folder.is_dir())
            self.path = above / f".{events.parent.name}.{os.getpid()}.{CONSOLE}"
        self._file = self.path.open("ab+")  # at its end; a file that is moved remains open
        self._mover = Thread()

    def settle(self) -> None:
        """Moves the file into the folder, if the command has made it.

        It does not wait for the file system, which may hang; a further call looks again.
        """
        if self.path != self.place and not self._mover.is_alive():
            self._mover = Thread(target=self._move, daemon=True)
            self._mover.start()

    def _move(self) -> None:
        if self.path != self.place and self._events.exists():
            with suppress(OSError):  # otherwise it stays where it is
                self.path.replace(self.place)
                self.path = self.place

    def print_last(self) -> None:
        """Prints the last lines of the output so far."""
        lines = self._read().rsplit(b"\n", SHOWN_LINES + 1)
        _print(b"\n".join(lines[-SHOWN_LINES - 1 :]))

    def print_new(self) -> None:
        """Prints what was added since the last call."""
        _print(self._read())

    def close(self) -> None:
        """Removes the file if the command has not made its folder: it could not start, and its output is printed."""
        self._file.close()
        with suppress(RuntimeError):  # there was nothing to move
            self._mover.join()
        self._move()
        if self.path != self.place:
            self.path.unlink(missing_ok=True)

    def _read(self) -> bytes:
        return self._file.read()


def _print(content: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
