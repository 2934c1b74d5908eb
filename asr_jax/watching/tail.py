"""Events of a file that grows, is replaced, or cannot be read for a while."""

import json
from pathlib import Path

from asr_jax.core.names import counted
from asr_jax.observe.event_fields import EVENTS, is_complete
from asr_jax.observe.events import Event
from asr_jax.watching.state import UNUSED


class Tail:
    """Reads the events of a file that were not read yet, whenever `read` is called.

    Only complete lines are read, so a line that is being written, or that a resumed job removes, is never used. A file
    that is shorter than before, or has another line before that place, is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        """All events of the file that are used, in order."""
        self.problem = ""
        """Reason why the file could not be read the last time. Empty: it could."""
        self.num_damaged = 0
        """Number of lines that are not events, or lack fields of their kind (`event_fields.is_complete`)."""
        self.num_replaced = 0
        """Number of times that another file took the place of the file."""
        self._position, self._last = 0, b""
        """Size of the part that was read, and its last line, which shows whether the file is the same."""

    @property
    def damage(self) -> str:
        """Lines that are left out, as text; empty if there are none."""
        if not self.num_damaged:
            return ""
        return f"left out {counted(self.num_damaged, 'line')}: no event, or a field is missing or has another type"

    def read(self) -> bool:
        """Reads further events; returns whether anything has changed."""
        before = self.problem
        try:
            if self.path.exists() and not self.path.is_file():  # a pipe or a device might never end
                raise OSError("it is not a regular file")
            with self.path.open("rb") as file:
                file.seek(self._position - len(self._last))
                if file.read(len(self._last)) != self._last:  # a file that is shorter, or has other lines
                    self.events, self.num_damaged, self._position, self._last = [], 0, 0, b""
                    self.num_replaced += 1
                    file.seek(0)
                content = file.read()
        except OSError as error:
            is_new = isinstance(error, FileNotFoundError) and not self.events
            self.problem = "not written yet" if is_new else error.strerror or str(error)
            return self.problem != before
        self.problem = ""
        complete = content[: content.rfind(b"\n") + 1]
        if not complete:
            return self.problem != before
        self._position += len(complete)
        self._last = complete[complete.rfind(b"\n", 0, -1) + 1 :]
        for line in complete.split(b"\n")[:-1]:
            self._add(line)
        return True

    def _add(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # no JSON, or too many brackets within each other
            event = None
        if not is_complete(event):
            self.num_damaged += 1
        elif event["event"] in EVENTS and event["event"] not in UNUSED:
            self.events.append(event)
