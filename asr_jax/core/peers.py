"""Watch over the processes of a run: when one dies, hangs or cannot be reached, all others end and name it.

Each process counts in the key-value store of the coordinator, which is a part of process 0. Process 0 names a process
whose count stands still, and writes the message to the store, where the others find it. A process that does not reach
the store names process 0. Collectives would otherwise wait for the missing process until JAX's own timeout.
"""

import atexit
import functools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from asr_jax.core.errors import RunError
from asr_jax.core.native import end_native_log

BEAT_S = 2.0
"""Seconds between two counts of a process."""
LOST_S = 45.0
"""Default of the seconds after which a process whose count stands still is lost."""
FAILED_S = 10.0
"""As `LOST_S`, after a computation has failed here."""
ENDING_S = 15.0
"""Longest time in seconds in which a process ends after an error."""
OF_COLLECTIVES = re.compile("Gloo|NCCL|coordination service|UNAVAILABLE")
"""Errors of collectives whose other processes are lost. JAX raises some of them as ValueError."""
OF_MEMORY = "RESOURCE_EXHAUSTED"
"""Error of a device's memory, which is no sign of a lost process, although its type is that of failed collectives."""
GRACE_S = 5.0
"""Seconds in which a process that reads the message about another one may end by itself, with an error of its own."""
LOST_CODE = 75
"""Exit code if a process is lost (EX_TEMPFAIL): the same command continues the run."""
COUNTS, VERDICT = "asr_jax/counts", "asr_jax/verdict"
"""Keys of the store: the counts of all processes, and the exit code and message with which all end."""


class Watch:
    """Counts for this process, and watches the others, in threads."""

    def __init__(
        self,
        store: Any,
        index: int,
        *,
        address: str = "",
        end: Callable[[int, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialises without starting the threads.

        Args:
            store: Client of the coordinator, with `key_value_set`, `key_value_dir_get` and `key_value_try_get`.
            index: Number of this process.
            address: Address of the coordinator, for messages.
            end: Called with an exit code and a message to end this process. None: prints the message and exits.
            clock: Returns the time in seconds.
        """
        self.lost_s = LOST_S
        self._store, self._index, self._address, self._clock = store, index, address, clock
        self._end = end or _end
        self._count, self._reached = 0, clock()
        self._seen: dict[str, tuple[str, float]] = {}
        self._closed = threading.Event()
        self.has_announced = False
        """Whether an error that ends this process was announced."""

    def start(self) -> None:
        """Starts the threads. A call of the store may wait for a process that hangs, and has a thread of its own."""
        for function in (self.beat, self.check):
            threading.Thread(target=self._repeat, args=(function,), daemon=True).start()

    def _repeat(self, function: Callable[[], None]) -> None:
        while True:  # at once: a process may die within the first seconds
            function()
            if self._closed.wait(BEAT_S):
                return

    def beat(self) -> None:
        """Counts, and ends this process if the store has a message."""
        try:
            self._count += 1
            self._write(str(self._count))
            if self._closed.is_set():  # `close` may have written first
                return self._write("")
            if self._index == 0:
                self._judge()
            verdict = self._verdict()
        except Exception:  # the store is not reached; `check` ends the process if this persists
            return None
        self._reached = self._clock()
        if verdict and not self._closed.wait(GRACE_S):
            self._end(*verdict)
        return None

    def check(self) -> None:
        """Ends this process if it has not reached the store for too long."""
        silent_s = self._clock() - self._reached
        if self._index and silent_s > self.lost_s and not self._closed.is_set():
            self._end(LOST_CODE, _lost("process 0", f" (the coordinator, {self._address})", silent_s))

    def announce(self, code: int, message: str) -> None:
        """Ends all other processes with a message, unless there is one already.

        Args:
            message: Message without the number of this process.
        """
        self._propose(code, f"process {self._index} ended: {message}")

    def close(self) -> None:
        """Stops the watch. The other processes no longer expect this one to count."""
        if not self._closed.is_set():
            self._closed.set()
            try:
                self._write("")
            except Exception:  # the coordinator has ended
                return

    def _write(self, count: str) -> None:
        value = json.dumps([count, socket.gethostname(), os.getpid()])
        self._store.key_value_set(f"{COUNTS}/{self._index}", value, allow_overwrite=True)

    def _judge(self) -> None:
        """Writes a message if the count of a process stands still."""
        counts, now = dict(self._store.key_value_dir_get(COUNTS)), self._clock()
        self._seen = {
            key: before if (before := self._seen.get(key)) and before[0] == value else (value, now)
            for key, value in counts.items()
        }
        for key, (value, since) in sorted(self._seen.items(), key=lambda each: each[1][1]):
            count, host, process = json.loads(value)
            if count and now - since > self.lost_s:
                of = f" ({process} on {host})"
                return self._propose(LOST_CODE, _lost(f"process {key.rpartition('/')[2]}", of, now - since))
        return None

    def _propose(self, code: int, message: str) -> None:
        try:
            self._store.key_value_set(VERDICT, json.dumps([code, message]))  # raises an error if there is one
        except Exception:
            return

    def _verdict(self) -> tuple[int, str] | None:
        try:
            code, message = json.loads(self._store.key_value_try_get(VERDICT))
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return code, message


def _lost(name: str, of: str, silent_s: float) -> str:
    return (
        f"{name}{of} has been silent for {silent_s:.0f} s: it was killed, hangs or cannot be reached. All processes "
        "of the run end; the same command continues it from the newest checkpoint"
    )


def _end(code: int, message: str) -> None:
    """Prints an error and ends the process, which may wait in a collective."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    end_native_log()
    os._exit(code)


_watch: Watch | None = None


def watch(store: Any, index: int, address: str) -> None:
    """Starts the watch of this process.

    Args:
        store: Client of the coordinator.
        index: Number of this process.
    """
    global _watch
    _watch = Watch(store, index, address=address)
    _watch.start()
    atexit.register(_watch.close)
    sys.excepthook = functools.partial(_uncaught, sys.excepthook)  # of a Python program; commands call `explain`


def _uncaught(
    print_error: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints an error that ends this process, and announces it to the other processes."""
    print_error(kind, error, trace)
    explain(error)


def lost_after(seconds: float) -> None:
    """Sets the seconds after which a silent process is lost."""
    if _watch:
        _watch.lost_s = seconds


def explain(error: BaseException) -> None:
    """Announces to the other processes that an error ends this one.

    Nothing is announced if all processes end as planned, after a signal or a time limit.

    If another process is lost, its collectives fail here: this process then waits until the watch names the other one
    and ends.

    Args:
        error: Error that ends this process.
    """
    if _watch is None or _watch.has_announced or getattr(error, "is_planned", False):
        return
    _watch.has_announced = True
    is_of_peers = type(error).__name__ == "JaxRuntimeError" or OF_COLLECTIVES.search(str(error))
    if is_of_peers and OF_MEMORY not in str(error):
        limit_s, _watch.lost_s = _watch.lost_s, min(_watch.lost_s, FAILED_S)
        time.sleep(limit_s + 2 * BEAT_S + GRACE_S)
    code = getattr(error, "exit_code", RunError.exit_code)
    _watch.announce(code, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    # At exit, JAX waits for processes that may not come.
    ending = threading.Timer(ENDING_S, os._exit, (code,))
    ending.daemon = True
    ending.start()
