"""Events of a file that grows, is replaced, or cannot be read for a while."""

import hashlib
import json
from pathlib import Path

from asr_jax.observe.events import Event
from asr_jax.watching.state import UNUSED

HEAD_BYTES = 256
"""Number of bytes at the beginning of a file that identify it: the first event has the time of the run's start."""


class Tail:
    """Reads the events of a file that were not read yet, whenever `read` is called.

    Only complete lines are read, so a line that is being written, or that a resumed job removes, is never used. A file
    with another beginning, or one that is shorter than before, is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        """All events of the file that are used, in order."""
        self.problem = ""
        """Reason why the file could not be read the last time. Empty: it could."""
        self.num_damaged = 0
        """Number of lines that are not events."""
        self.num_replaced = 0
        """Number of times that another file took the place of the file."""
        self._position, self._head, self._num_head = 0, "", 0

    def read(self) -> bool:
        """Reads further events; returns whether anything has changed."""
        before = self.problem
        try:
            with self.path.open("rb") as file:
                start = file.read(HEAD_BYTES)
                size = file.seek(0, 2)
                is_other = size < self._position or _digest(start[: self._num_head]) != self._head
                if self._num_head and is_other:
                    self.events, self.num_damaged, self._position, self._num_head = [], 0, 0, 0
                    self.num_replaced += 1
                file.seek(self._position)
                content = file.read()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return self.problem != before
        self.problem = ""
        complete = content[: content.rfind(b"\n") + 1]
        if not complete:
            return self.problem != before
        if self._position == 0:
            self._num_head = min(len(complete), HEAD_BYTES)
            self._head = _digest(complete[: self._num_head])
        self._position += len(complete)
        for line in complete.split(b"\n")[:-1]:
            self._add(line)
        return True

    def _add(self, line: bytes) -> None:
        try:
            event: Event = json.loads(line)
            if event["event"] not in UNUSED and isinstance(event["data"], dict):
                self.events.append(event)
        except (ValueError, KeyError, TypeError):
            self.num_damaged += 1


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
