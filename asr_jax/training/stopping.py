"""Ctrl-C and SIGTERM end a run between two updates, after a checkpoint."""

import signal
from types import FrameType, TracebackType
from typing import Any

from asr_jax.core.errors import RunError
from asr_jax.core.processes import gathered


class Stopped(RunError):
    """A run that was told to stop and has saved; the exit code is the shell's for the signal."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal.Signals[name].value


class Signals:
    """While it is open, the first SIGINT or SIGTERM is noted; a second one ends the process at once."""

    def __init__(self) -> None:
        self._noted = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self) -> str:
        """Name of the signal that any process of the run got, or nothing; all processes must call it together."""
        return next((name for name in gathered(self._noted) if name), "")

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = signal.Signals(number).name
        print(f"{self._noted}: saving and ending; once more ends at once", flush=True)
