"""Files that are whole or not there, however a process ends."""

import contextlib
import fcntl
import os
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr_jax.core.errors import UserError


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file under a name that no other process has, flushes it to the disk and renames it: a reader never sees
    a part of it, nor something of two writers.
    """
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def check_writable(out: Path, *, is_folder: bool = False) -> list[Path]:
    """Tries what is to be written after the work, a file or files in a folder, and leaves no file; gives the folders
    that it made, innermost first.

    Raises: UserError where it cannot be written.
    """
    folder = out if is_folder else out.parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_folder:
            tempfile.TemporaryFile(dir=folder).close()
        else:
            was_there = os.path.lexists(out)
            out.open("a").close()
            if not was_there:
                out.unlink()
    except OSError as error:
        remove_empty(made)
        raise UserError(f"{out} cannot be written: {error.strerror}; choose another place") from error
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those folders that nothing is in."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def held(path: Path, what: str, *, otherwise: str = "wait for it, or stop it") -> Iterator[None]:
    """Keeps other processes out of the block by a lock on a file, which says who has it. `what`: is being done.

    Raises: UserError where another process is in the block; OSError where the file cannot be written.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            by = file.read().strip() or "by another process"
            raise UserError(f"{what} already ({by}); {otherwise}") from error
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
