"""What a reader is: a format by its name, which paths are of it, and the utterances that are there."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

Entries = Iterator[Utterance | Rejected]


def beside(path: str) -> tuple[str, ...]:
    """The folder of a manifest, the one above it (a data set that keeps its manifests in a folder of their own), and
    the current one.
    """
    folder = os.path.dirname(os.path.abspath(path))
    return folder, os.path.dirname(folder), os.curdir


@dataclass(frozen=True)
class ReadOptions:
    """How data are read, and what has been found of them so far; for one reading, since folders may change."""

    texts_may_lack: bool = False
    """Whether entries without a text are read, with an empty one: for transcription, and training on audio alone."""
    walked: dict[str, list[str]] = field(default_factory=dict, compare=False)
    """The files of each folder that was walked: of a million they take seconds each time."""

    def walk(self, folder: str) -> Iterable[str]:
        """All files under a folder, in order. Links to folders are followed, each folder once, so that a loop ends."""
        if folder not in self.walked:
            self.walked[folder] = list(_walk(folder))
        return self.walked[folder]


def _walk(folder: str) -> Iterator[str]:
    seen = {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        inside = []
        for name in sorted(folders):
            real = os.path.realpath(os.path.join(parent, name))
            if not name.startswith(".") and real not in seen:
                seen.add(real)
                inside.append(name)
        folders[:] = inside
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith("."))


@dataclass(frozen=True)
class Reader:
    """One format."""

    name: str
    matches: Callable[[str], bool]
    """Whether a path, of a file or a folder, is of this format."""
    files: Callable[[str, ReadOptions], list[str]]
    """All files whose change means that the utterances may be others."""
    read: Callable[[str, Unpacked, ReadOptions], Entries]
    """The utterances of a path, in order, and what none can be made of; bytes that training could not read by themselves
    are unpacked. Raises: UserError for a path that cannot be read as a whole."""
    roots: Callable[[str], tuple[str, ...]] = beside
    """The folders that relative locations may start from; all start from the first at which there is a file."""


def this_file(path: str, options: ReadOptions) -> list[str]:
    return [path]
