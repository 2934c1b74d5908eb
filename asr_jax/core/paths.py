"""Paths that users give: `~` and patterns in them, and states and digests that show whether a file has changed."""

import functools
import glob
import hashlib
import os
import shlex
from typing import Annotated

A_PATH = "path"
"""Marks a text as a path in the annotation of a setting or an option."""
UserPath = Annotated[str, A_PATH]
"""A path that a user gives as a text: `~` at its beginning is the home folder, see `core.settings.check`."""
State = tuple[int, int, int]
"""Size of a file in bytes, and the times of the last change of its content and of its entry in the folder, in ns."""
MISSING: State = (-1, -1, -1)


def at_home(path: str) -> str:
    """Replaces `~` or `~user` at the beginning of a path by the home folder."""
    return os.path.expanduser(path) if path.startswith("~") else path


def is_utf8(path: str) -> bool:
    """Returns whether a path, or another text, can be written into files. Paths that are not UTF-8 can be opened."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def quoted(path: str | os.PathLike[str]) -> str:
    """Returns a path as a word of a command that a user can copy."""
    return shlex.quote(os.fspath(path))


def divided(pattern: str) -> tuple[str, str]:
    """Divides a pattern into the folder at its beginning that exists, which is a name, and the rest.

    In `runs [old]/*.jsonl`, only `*.jsonl` is a pattern.
    """
    folder, rest = pattern, ""
    while folder and not os.path.exists(folder):
        folder, name = os.path.split(folder)
        rest = os.path.join(name, rest) if rest else name
    return folder, rest


def matches(pattern: str) -> list[str]:
    """Returns the paths that match a glob pattern, in order. Its first folders may be names, see `divided`."""
    folder, rest = divided(pattern)
    return sorted(glob.glob(os.path.join(glob.escape(folder), rest) if rest else glob.escape(folder), recursive=True))


def digest_of(path: str | os.PathLike[str], first_byte: int = 0, num_bytes: int | None = None) -> str:
    """Returns the digest of the bytes of a file, or of a part of it; empty if it cannot be read.

    A file is read once by a process, as long as its state does not change.
    """
    return _digest_of(os.fspath(path), first_byte, num_bytes, state_of(path))


@functools.lru_cache(1 << 16)
def _digest_of(path: str, first_byte: int, num_bytes: int | None, state: State) -> str:
    try:
        with open(path, "rb") as file:
            if num_bytes is None:
                return hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(first_byte)
            return hashlib.sha256(file.read(num_bytes)).hexdigest()
    except OSError:
        return ""


def state_of(path: str | os.PathLike[str]) -> State:
    """Returns the state of a file, MISSING if there is none. A file with an equal state is unchanged.

    A file that replaces another one of equal size, with its time, has another time of its entry (ctime).
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a path with a zero byte
        return MISSING
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
