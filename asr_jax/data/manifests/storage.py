"""Reads from slow and failing storage: with a longest wait, retries, and a list of sources that do not answer."""

import functools
import math
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from asr_jax.audio.io import AudioError
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, settings
from asr_jax.data.manifests.remote import StorageError, source_of

POLL_S = 0.2
"""Interval in which a wait checks whether other reads have found that the source does not answer."""
FIRST_SHARE = 0.9
"""Share of the longest wait that a read may take of a source that answers. The rest is for a second read, which tells
a file that cannot be read from a source that does not answer."""


BACKOFF_S = 0.5
"""Pause in seconds before the first repetition; each further pause is twice as long, plus up to half of it."""


@settings
class Storage:
    """Patience with slow and failing storage. A source is a bucket or host of URLs, or a mounted file system."""

    max_wait_s: PositiveFloat = 120.0
    """Longest time in seconds that training waits for a source that does not answer. Its utterances are then rejected
    at once, with the source as their reason, until it answers again."""
    retries: NonNegativeInt = 3
    """Number of times that a read is repeated after a connection failed or half of a file came, within the longest
    wait."""


@dataclass
class _Source:
    """State of a source."""

    answered_s: float = -math.inf
    """Time of its last answer."""
    suspected_s: float = math.inf
    """Time at which a read gave up without an answer of the source. Infinite: it answers."""
    is_dead: bool = False
    """Whether a second read has had no answer either."""
    probed_s: float = -math.inf
    """Time of the last read of a dead source."""
    is_failing: bool = False
    """Whether the last read has failed in spite of its retries. Reads are then not repeated."""
    num_rejected: int = 0
    """Number of reads without a result since the last answer."""


class Reads:
    """Reads of a process, each in a helper thread, since a read that stalls cannot be interrupted."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, threading.Lock()
        self._sources: dict[str, _Source] = {}
        self._stuck = set[str]()
        self._helpers = threading.local()

    def __call__[R](self, path: str, read: Callable[[], R]) -> R:
        """Returns `read()`, which reads a file at `path`.

        Raises:
            AudioError: If the file cannot be read, or if its source does not answer.
        """
        name = source_of(path)
        with self._lock:
            source = self._sources.setdefault(name, _Source())
            if path in self._stuck or source.is_dead:
                source.num_rejected += 1
                if source.is_dead and time.monotonic() - source.probed_s > self._storage.max_wait_s:
                    source.probed_s = time.monotonic()
                    self._watched(path, source, self._submit(read))
                    self._leave_helper()
                what = f"{name} does not answer" if source.is_dead else f"{name} does not answer for this file"
                raise AudioError(path, f"{what} ({source.num_rejected:,} reads since)" if source.is_dead else what)
        started_s = time.monotonic()
        for attempt in range(self._storage.retries + 1):
            try:
                result = self._answer(path, name, source, read, started_s)
            except StorageError as error:
                pause_s = BACKOFF_S * 2**attempt * random.uniform(1, 1.5)
                is_over = time.monotonic() + pause_s - started_s > FIRST_SHARE * self._storage.max_wait_s
                if attempt == self._storage.retries or source.is_failing or is_over:
                    source.is_failing = True
                    with self._lock:
                        source.num_rejected += 1
                    raise AudioError(path, f"{name} fails: {error.reason}") from None
                time.sleep(pause_s)
            else:
                source.is_failing, source.num_rejected = False, 0
                return result
        raise AssertionError("unreachable")

    def _answer[R](self, path: str, name: str, source: _Source, read: Callable[[], R], started_s: float) -> R:
        future = self._submit(read)
        while True:
            now_s = time.monotonic()
            end_s = started_s + FIRST_SHARE * self._storage.max_wait_s
            second_s = (1 - FIRST_SHARE) * self._storage.max_wait_s
            end_s = min(end_s, max(source.suspected_s, started_s) + second_s)
            if now_s >= end_s or source.is_dead:
                break
            with suppress(NotYet):
                return self._result(future, source, min(POLL_S, end_s - now_s))
        with self._lock:
            self._leave_helper()
            source.num_rejected += 1
            if source.suspected_s < math.inf:
                source.is_dead, source.probed_s = True, time.monotonic()
            elif source.answered_s < started_s:
                source.suspected_s = time.monotonic()
            self._watched(path, source, future)
        waited_s = time.monotonic() - started_s
        raise AudioError(path, f"{name} does not answer{'' if source.is_dead else ' for this file'} ({waited_s:.1f} s)")

    def _watched(self, path: str, source: _Source, future: Future[Any]) -> None:
        """Lets a read go on, whose answer shows that its source answers again."""

        def done(future: Future[Any]) -> None:
            with suppress(Exception):
                self._result(future, source, None)
            self._stuck.discard(path)

        self._stuck.add(path)
        # In a thread of its own if the read is done already: the caller holds the lock.
        future.add_done_callback(lambda future: threading.Thread(target=done, args=(future,), daemon=True).start())

    def _result[R](self, future: Future[R], source: _Source, timeout_s: float | None) -> R:
        """Waits for a read. Its source answers if it has a result, or an error that is not of the storage."""
        try:
            result = future.result(timeout_s)
        except (StorageError, NotYet):
            raise
        except AudioError:
            self._answered(source)
            raise
        self._answered(source)
        return result

    def _answered(self, source: _Source) -> None:
        with self._lock:
            source.answered_s, source.suspected_s, source.is_dead = time.monotonic(), math.inf, False

    def _submit[R](self, read: Callable[[], R]) -> Future[R]:
        """Starts a read in the helper thread of this thread."""
        future: Future[R] = Future()
        if getattr(self._helpers, "queue", None) is None:
            self._helpers.queue = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._helpers.queue,), daemon=True).start()
        self._helpers.queue.put((future, read))
        return future

    def _leave_helper(self) -> None:
        """Leaves the helper thread to its read, after which it ends; the next read has a new one."""
        self._helpers.queue.put(None)
        self._helpers.queue = None


def _work(tasks: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while task := tasks.get():
        future, read = task
        try:
            future.set_result(read())
        except BaseException as error:
            future.set_exception(error)


@functools.cache
def reads_of(storage: Storage) -> Reads:
    """Reads of this process with some settings, which share what they know about sources."""
    return Reads(storage)
