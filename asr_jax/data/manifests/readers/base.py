"""Interface of readers: the name of a format, its paths, and their utterances."""

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from asr_jax.core.names import counted
from asr_jax.data.manifests.remote import origin_of
from asr_jax.data.manifests.unpacking import Held
from asr_jax.data.manifests.utterances import Rejected, Utterance

Entries = Iterator[Utterance | Rejected]
logger = logging.getLogger(__name__)


def beside(path: str) -> tuple[str, ...]:
    """Folders that locations in a manifest may be relative to.

    These are the folder of the manifest, its parent folder (a data set with its manifests in a subfolder), and the
    current folder. For a manifest that is fetched from a URL, it is the folder of the URL.
    """
    if origin := origin_of(path):
        return (origin,)
    folder = os.path.dirname(os.path.abspath(path))
    return folder, os.path.dirname(folder), os.curdir


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning, once in a process: inputs are resolved and read more than once."""
    logger.warning(message)


def notes_of(path: str, num_skipped: int, options: "ReadOptions") -> list[str]:
    """Sentences on an input after it was read: its utterances that are left out, and the remarks on others."""
    notes = [f"{path}: {counted(num, 'utterance')} {remark}" for remark, num in options.remarks.items()]
    options.remarks.clear()
    if num_skipped:
        notes.append(f'{path}: {counted(num_skipped, "utterance")} skipped, because "_skipme" is set')
    return notes


@dataclass(frozen=True)
class ReadOptions:
    """Options of one reading, and a cache of the folders that are walked.

    Folders may change, and each reading needs new options.
    """

    texts_may_lack: bool = False
    """Whether utterances without a text are read, with an empty text: for transcription, and for training on audio
    alone."""
    allow_pipes: bool = False
    """Whether commands in the place of files are run, as `ffmpeg -i a.m4a -f wav - |` (see `data.manifests.pipes`)."""
    root: str = ""
    """Folder in the place of the current one, for relative locations in manifests. Empty: the current folder."""
    may_reject: bool = False
    """Whether any share of the utterances of an input may be rejected, if one is left: to look at data."""
    unpacked: Held = field(default_factory=Held, compare=False)
    """Takes bytes that are contained in the data and that training cannot read individually."""
    remarks: Counter[str] = field(default_factory=Counter, compare=False)
    """Remarks on utterances that are used, such as one on a field that is not used, with the number of utterances. A
    remark is the end of the sentence `N utterances …`."""
    walked: dict[str, list[str]] = field(default_factory=dict, compare=False)
    """Files of each folder that is already walked. To walk a million files takes seconds."""

    def walk(self, folder: str) -> Iterable[str]:
        """All files under a folder in order. Links to folders are followed, each folder once, and loops end."""
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
    """Reader of one format."""

    name: str
    """Name of the format."""
    matches: Callable[[str], bool]
    """Whether a path of a file or folder has this format."""
    files: Callable[[str, ReadOptions], list[str]]
    """All files whose change may change the utterances."""
    read: Callable[[str, ReadOptions], Entries]
    """Yields the utterances of a path in order, and a Rejected for each that is not valid. Raises UserError if the path
    as a whole cannot be read."""
    roots: Callable[[str], tuple[str, ...]] = beside
    """Folders that relative locations may start from. All start from the first folder in which a file exists."""
    details: Callable[[str], str] = lambda path: ""
    """Returns the format of a path more exactly than `name`, with the columns that are used. Empty: only `name`."""


Input = tuple[int, str, Reader]
"""Index of an input, path to read, and reader."""


def is_file_of(*endings: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a path is a file with one of the endings, in small or capital letters."""
    return lambda path: path.lower().endswith(endings) and not os.path.isdir(path)


def this_file(path: str, options: ReadOptions) -> list[str]:
    return [path]
