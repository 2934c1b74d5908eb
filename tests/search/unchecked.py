"""Calls without type checks: of code in plain Python that calls itself hundreds of thousands of times, they take four
fifths of the time. Other calls of the same functions are checked."""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config


@contextmanager
def unchecked() -> Iterator[None]:
    """Within, functions check none of their arguments. It is a decorator, too."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
