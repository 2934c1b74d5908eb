"""Work that Ctrl-C does not divide."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block, so that the block is computed as a whole.

    Threads other than the main one are not interrupted anyway.
    """
    handler, noted = signal.getsignal(signal.SIGINT), list[Any]()
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *given: noted.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(*noted[0])
