"""Files that are whole or not there, however a process ends."""

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from asr_jax.core.errors import UserError


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file under a name that no other process has, flushes it to the disk and renames it: a reader never sees
    a part of it, nor something of two writers."""
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
