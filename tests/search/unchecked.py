"""Disables run-time type checks, which take four fifths of the time in recursive plain Python.

Other tests call the same functions with checks.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config


@contextmanager
def unchecked() -> Iterator[None]:
    """Disables type checks of arguments; a context manager and a decorator."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
