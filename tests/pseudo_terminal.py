"""A command in a pseudo-terminal, whose keys and screen a test controls."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Makes standard input the terminal whose keys send signals, and calls Python again. Under nohup, SIGHUP is otherwise
# ignored, as SIGINT is in background jobs.
WITH_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "[signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)]; "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
ROOT = Path(__file__).parents[1]


class InTerminal:
    """Runs a Python module in a terminal of 100 × 30 cells."""

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        self._main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WITH_TERMINAL, *arguments],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, start_new_session=True,
            env=inherited | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | environment,
        )  # fmt: skip
        os.close(terminal)
        self.output = b""

    def read_until(self, is_there: Callable[[bytes], bool], *, timeout_s: float = 100.0) -> bytes:
        """Reads until a condition on the whole output holds, or the process ends."""
        until = time.monotonic() + timeout_s
        while not is_there(self.output):
            if time.monotonic() > until:
                raise AssertionError(f"not there after {timeout_s} s: {self.output[-3000:]!r}")
            if select.select([self._main], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self._main, 65536)
                except OSError:  # the process has closed the terminal
                    break
        return self.output

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def end(self, *, timeout_s: float = 100.0) -> int:
        """Reads the rest of the output; returns the exit code."""
        self.read_until(lambda _: False, timeout_s=timeout_s)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Closes the terminal, as a lost connection does."""
        os.close(self._main)
