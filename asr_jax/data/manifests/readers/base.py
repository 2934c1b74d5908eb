"""What a reader is: a format by its name, which paths are of it, and the records that are there."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asr_jax.data.manifests.records import Record, Refused
from asr_jax.data.manifests.unpacking import Unpacked

Entries = Iterator[Record | Refused]


def beside(path: str) -> tuple[str, ...]:
    """The folder of a manifest, the one above it (a data set that keeps its manifests in a folder of their own), and
    the current one."""
    folder = os.path.dirname(os.path.abspath(path))
    return folder, os.path.dirname(folder), os.curdir


@dataclass(frozen=True)
class Reader:
    """One format."""

    name: str
    matches: Callable[[str], bool]
    """Whether a path, of a file or a folder, is of this format."""
    files: Callable[[str], list[str]]
    """All files whose change means that the records may be others."""
    read: Callable[[str, Unpacked], Entries]
    """The records of a path, in order, and what none can be made of; bytes that training could not read by themselves
    are unpacked. Raises: UserError for a path that cannot be read as a whole."""
    roots: Callable[[str], tuple[str, ...]] = beside
    """The folders that relative locations may start from; all start from the first at which there is a file."""


def this_file(path: str) -> list[str]:
    return [path]
