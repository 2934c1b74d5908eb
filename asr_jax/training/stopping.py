"""Signals: Ctrl-C, SIGTERM and SIGUSR1 end a job between two updates, after a checkpoint."""

import signal
import threading
from types import FrameType
from typing import Any

from asr_jax.core.errors import RunError
from asr_jax.core.processes import gathered

REQUEUE = 75
"""Exit code (EX_TEMPFAIL) for schedulers that requeue jobs: the same command continues the run."""


class Stopped(RunError):
    """Raised when a job ends before the run is complete, after it has saved a checkpoint of its updates.

    Its message is not marked as an error. The exit code is 130 after Ctrl-C, as in shells, and `REQUEUE` after a signal
    of a scheduler or a time limit.
    """

    is_planned = True

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal.SIGINT.value if why == "SIGINT" else REQUEUE


class Signals:
    """Context manager that records the first SIGINT, SIGTERM or SIGUSR1.

    Ctrl-C after the first signal ends the process immediately, as does any Ctrl-C before `wait_for_save` is called.
    """

    def __init__(self) -> None:
        self._noted, self._saves = "", False
        self._before: dict[int, Any] = {}

    def wait_for_save(self) -> None:
        """Lets the first Ctrl-C save before the job ends, as the other signals do. Before, there is nothing to save."""
        self._saves = True

    def __enter__(self) -> "Signals":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python sets signal handlers in the main thread only
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def have_come(self) -> bool:
        """Returns whether any process of the run has received a signal. All processes must call it together."""
        return bool(self.agreed())

    def agreed(self) -> str:
        """Returns the name of the signal that a process of the run received, or an empty string. All must call it."""
        return next((name for name in gathered(self._noted) if name), "")

    def stop_before_training(self) -> None:
        """Ends the job if a process received a signal. All processes must call it together.

        Raises:
            Stopped: If there was a signal.
        """
        if name := self.agreed():
            raise Stopped(f"{name}: ended before the first update, nothing was saved", name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Schedulers send several signals, such as SIGUSR1 and then SIGTERM. Only Ctrl-C ends the process immediately.
        if number == signal.SIGINT and (self._noted or not self._saves):
            raise KeyboardInterrupt
        if not self._noted:
            self._noted = signal.Signals(number).name
            print(f"{self._noted}: saving and ending; Ctrl-C ends immediately", flush=True)
