"""Ctrl-C, SIGTERM and SIGUSR1 end a job between two updates, after a checkpoint."""

import signal
from types import FrameType, TracebackType
from typing import Any

from asr_jax.core.errors import RunError
from asr_jax.core.processes import gathered

REQUEUE = 75
"""EX_TEMPFAIL: the same command goes on. A scheduler that requeues jobs by their exit code is told this one."""


class Stopped(RunError):
    """A job that has saved and ended before its run. The exit code is the shell's after Ctrl-C, and `REQUEUE` where a
    scheduler or a limit of time ended it.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal.SIGINT.value if why == "SIGINT" else REQUEUE


class Signals:
    """While it is open, the first SIGINT, SIGTERM or SIGUSR1 is noted; a Ctrl-C after it ends the process at once."""

    def __init__(self) -> None:
        self._noted, self._saves = "", False
        self._before: dict[int, Any] = {}

    def wait_for_save(self) -> None:
        """From here on Ctrl-C is noted as the others are; before, there is nothing to save and it ends at once."""
        self._saves = True

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def have_come(self) -> bool:
        """Whether any process of the run got one; all processes must call it together."""
        return bool(self.agreed())

    def agreed(self) -> str:
        """Name of the signal that any process of the run got, or nothing; all processes must call it together."""
        return next((name for name in gathered(self._noted) if name), "")

    def stop_before_training(self) -> None:
        """To be called by all processes together. Raises: Stopped where a signal came."""
        if name := self.agreed():
            raise Stopped(f"{name}: ended before the first update, so there was nothing to save", name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Schedulers send several in turn, such as SIGUSR1 and then SIGTERM: only a person's second one ends at once.
        if number == signal.SIGINT and (self._noted or not self._saves):
            raise KeyboardInterrupt
        if not self._noted:
            self._noted = signal.Signals(number).name
            print(f"{self._noted}: saving and ending; Ctrl-C ends at once", flush=True)
