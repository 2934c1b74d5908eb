"""Work that Ctrl-C and SIGTERM do not divide."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asr_jax.core.errors import UserError


class Terminated(UserError):
    """The command was ended by SIGTERM."""

    exit_code = 128 + signal.SIGTERM


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C, and SIGTERM if it has a handler, to the end of the block, so that the block is done as a whole.

    Threads other than the main one are not interrupted anyway.
    """
    of_both = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
    handlers: dict[int, Any] = {number: handler for number, handler in of_both if callable(handler)}
    if not handlers or threading.current_thread() is not threading.main_thread():
        yield
        return
    noted = list[tuple[int, Any]]()
    for number in handlers:
        signal.signal(number, lambda *given: noted.append(given))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if noted:
            handlers[noted[0][0]](*noted[0])


@contextmanager
def terminable() -> Iterator[None]:
    """Lets SIGTERM raise `Terminated` in the block, so that the block can end its work. For the main thread."""

    def raise_terminated(*_: Any) -> None:
        raise Terminated("terminated by SIGTERM")

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
