"""Atomic writes, checks of output paths, and lock files."""

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import bytes_of

MOST_BYTES = 255
"""Maximum length of a file name in UTF-8."""
OF_ALL_FILES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
"""Errors that the next file would have too, such as a full disk."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file atomically.

    The content is written to a temporary file with a unique name in the same folder, flushed to the disk and renamed.
    Readers never see a part of a file or a mixture of the files of two writers. The file that a link leads to is
    replaced, not the link. Pipes and devices, such as /dev/stdout, are written to.

    Args:
        content: Bytes, or text, which is written as in `text_files`.
    """
    content = bytes_of(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve() if path.is_symlink() else path
    # The name does not contain that of the file, which may have the maximum length.
    unfinished = path.with_name(f"{uuid.uuid4().hex[:16]}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError) and error.errno:  # the system's error names the temporary file, or none
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def temporary_path(path: Path, name: str) -> Path:
    """Returns the path of a temporary file or folder beside a file.

    Args:
        name: Its name, made of that of the file. If it is too long, a digest with the same ending replaces it.
    """
    content = os.fsencode(name)
    digest = f".{hashlib.sha256(content).hexdigest()[:32]}{Path(name).suffix}"
    return path.with_name(name if len(content) <= MOST_BYTES else digest)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends lines to a file and flushes it to the disk. A part of a line, of a killed process, is ended before."""
    with path.open("ab+") as file:
        file.seek(-1 if file.tell() else 0, os.SEEK_END)
        file.write(b"\n" * (file.read() not in (b"", b"\n")))
        file.writelines(bytes_of(line) + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def check_no_input(flag: str, out: Path | None, inputs: Iterable[str | Path]) -> None:
    """Checks that an output does not replace an input of the same command, under any of its names.

    Args:
        out: Path of a file; None: there is no such output.
        inputs: Paths of the inputs. Patterns, URLs and missing files are ignored.

    Raises:
        UserError: If the output is an input.
    """
    if out and out.is_file() and any(os.path.exists(path) and out.samefile(path) for path in inputs):
        raise UserError(f"{flag} {out} is also an input of this command: choose another name")


def check_writable(out: Path | None, *, is_folder: bool = False) -> list[Path]:
    """Checks before the work that its output can be written, by creating and removing a file.

    Missing folders are created and remain.

    Args:
        out: Path of a file, or of a folder for several files. None: there is no such output.

    Returns:
        The folders that were created, innermost first.

    Raises:
        UserError: If `out` cannot be written. The created folders are then removed.
    """
    if not out:
        return []
    folder = out if is_folder else out.parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_folder:
            tempfile.TemporaryFile(dir=folder).close()
        else:
            was_there = os.path.lexists(out)
            out.open("ab").close()
            if not was_there:
                out.unlink()
    except OSError as error:
        remove_empty(made)
        raise UserError(f"{out} cannot be written: {error.strerror}; choose another place") from error
    return made


def size_of(path: Path) -> int:
    """Returns the size of a file, or of all files in a folder, in bytes. The size of a missing path is 0."""
    if path.is_dir() and not path.is_symlink():
        return sum(size_of(Path(entry.path)) for entry in _scanned(path))
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _scanned(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # removed in the meantime
        return []


def is_free(path: Path) -> bool:
    """Returns whether no process has locked a file or folder."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those folders that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def held(path: Path, what: str, *, otherwise: str = "wait for it, or stop it") -> Iterator[None]:
    """Context manager that holds an exclusive lock on a file, which contains the owner's process id and host.

    On file systems without locks, other processes are not kept out.

    Args:
        path: Lock file.
        what: Begins the error message if the lock is taken, such as "x.tar is being made".
        otherwise: Ends the error message: what the user can do.

    Raises:
        UserError: If another process holds the lock.
        OSError: If the file cannot be written.
    """
    with path.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            by = file.read().decode(errors="replace").strip() or "by another process"
            raise UserError(f"{what} already ({by}); {otherwise}") from error
        except OSError:
            pass  # the file system has no locks
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        file.flush()
        yield
