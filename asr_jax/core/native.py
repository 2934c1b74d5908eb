"""Log of native libraries: XLA, CUDA, libsndfile and mpg123 write to file descriptor 2, without Python.

A command redirects descriptor 2 to a file, and `sys.stderr` continues on a duplicate of the terminal's descriptor.
Messages, warnings and tracebacks of Python are therefore still printed, and processes that the command starts write to
the file. A line of the file that the user must know is printed, see `problem_lines`.
"""

import contextlib
import faulthandler
import fcntl
import io
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asr_jax.core.environment import CACHES

VARIABLE = "ASR_JAX_NATIVE_LOG"
"""Environment variable for the path of the log; `-` leaves the lines in the terminal."""
FOLDER = "native"
"""Folder of the logs in the cache."""
KEPT_DAYS = 30
LARGEST = 100_000_000
"""Size of a log in bytes above which its lines are removed: some audio libraries write several for every file."""
SHOWN = 3
"""Number of problems that are printed."""
PROBLEM = re.compile(
    r"^[EF]\d{4} |out of memory|RESOURCE_EXHAUSTED|CUDA_ERROR|CUDNN_STATUS|NCCL WARN|check failed|terminate called|"
    r"(could not|cannot|failed to|unable to) (load|open|find|initiali[sz]e|allocate|create)|\bfatal\b",
    re.IGNORECASE,
)
"""Lines that the user must know: those of the levels error and fatal of absl, and some of other libraries."""
HARMLESS = re.compile(
    r"slow_operation_alarm|very slow compile|constant[_ ]folding|cpu_aot_loader|computation_placer|"
    r"unable to register cu(fft|dnn|blas)|optimized to use available cpu|mpg123|Illegal Audio-MPEG|"
    r"delay kernel timed out",
    re.IGNORECASE,
)
"""Lines of the level error without consequences. Commands report audio that cannot be decoded themselves."""
OF_MP3 = re.compile(r"mpg123|Illegal Audio-MPEG|^Note: (Trying to resync|Skipped \d+ bytes)")
"""Lines of libmpg123 about MP3 files with errors, which it decodes nevertheless."""
# Waits until the command ends. Its standard input then ends without `done` if the command was killed or crashed. The
# lines of the command begin after `begin` bytes of the log. faulthandler writes `Stack (most recent call first):` to
# the standard input at SIGTERM.
WATCHER = """
log=$1 begin=$2
is_terminated=
while read -r word number path; do
    case $word in
        log) log=$path begin=$number ;;
        Stack) is_terminated=1 ;;
        done) exit ;;
    esac
done
if [ "$is_terminated" ]; then
    echo "error: the command was terminated by SIGTERM, as timeout, kill and schedulers send it" >&2
    exit
fi
lines() { tail -c "+$((begin + 1))" "$log"; }
if lines | grep -q "distributed service detected fatal errors"; then
    lost=$(lines | sed -n '/stopped sending heartbeats/{n;p;q;}' | tr -cd 0-9)
    echo "error: process ${lost:-0, which coordinates the run,} was killed, hangs or cannot be reached. All processes" \
        "of the run end; the same command continues it from the newest checkpoint (details: $log)" >&2
    exit
fi
{
    echo "error: the command was killed (for example because the memory was full) or has crashed"
    if [ "$(lines | wc -c)" -gt 0 ]; then
        echo "last lines of native libraries, from $log:"
        lines | tail -n 20
    fi
} >&2
"""


@dataclass
class _Log:
    path: Path
    begin: int
    """Size of the file before this command."""
    read: int
    """Position up to which problems were returned."""
    watcher: subprocess.Popen[bytes] | None = None

    def lines(self, position: int) -> Iterator[str]:
        """Yields the lines from a position in the file."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(position)
            for line in file:
                yield line.decode(errors="replace").rstrip("\n")


_log: _Log | None = None


@contextlib.contextmanager
def native_log() -> Iterator[None]:
    """Context manager of a command: redirects descriptor 2 to a file and reports its problems at the end.

    Without a folder that can be written, and within another command, nothing is redirected. The descriptor stays
    redirected at the end of the process, because libraries also write while the interpreter ends; it is restored if
    `sys.stderr` does not write to descriptor 2, as in tests.
    """
    global _log
    if _log or os.environ.get(VARIABLE) == "-":
        yield
        return
    try:
        terminal, path = os.dup(2), _new_file()
    except OSError:
        yield
        return
    is_process = _descriptor(sys.stderr) == 2
    _log = _Log(path, begin=path.stat().st_size, read=path.stat().st_size)
    _send(path)
    if is_process:
        _move_stderr(terminal)
        _log.watcher = _watch(_log, terminal)
        _note_sigterm(_log.watcher)
    failed = True
    try:
        yield
        failed = False
    except (SystemExit, KeyboardInterrupt):  # the message of the command has the reason
        failed = False
        raise
    finally:
        _end(_log, failed=failed)
        _log = None
        if not is_process:
            os.dup2(terminal, 2)
            os.close(terminal)


def move_native_log(path: Path) -> None:
    """Moves the log of this command to the end of a file, such as one in the folder of a run."""
    if _log is None or os.environ.get(VARIABLE):
        return
    former = _log.path
    try:
        before = path.stat().st_size if path.exists() else 0
        _append(path, former.read_bytes())
        _send(path)
    except OSError:
        return  # the former file remains in use
    _log.path, _log.begin, _log.read = path, before, before + max(_log.read - _log.begin, 0)
    _tell_watcher(_log)
    former.unlink(missing_ok=True)


def end_native_log() -> None:
    """Reports problems before a command ends without leaving `native_log`."""
    if _log:
        _end(_log, failed=True)


def native_problems() -> str:
    """Returns a message with the problems since the last call; empty if there are none."""
    if _log is None:
        return ""
    begin, _log.read = _log.read, os.fstat(2).st_size
    found = problem_lines(_log.lines(begin))
    if _log.read > LARGEST:
        _log.begin = _log.read = 0
        os.truncate(_log.path, 0)  # libraries append
        _tell_watcher(_log)
        os.write(2, b"earlier lines were removed, because the file was too large\n")
    if not found:
        return ""
    first = "".join(f"\n  {line[:200]}" for line in dict.fromkeys(found[:SHOWN]))
    number = "1 line reports a problem" if len(found) == 1 else f"{len(found)} lines report problems"
    return f"native libraries: {number}; all lines are in {_log.path}:{first}"


def problem_lines(lines: Iterable[str]) -> list[str]:
    """Returns the lines that report a problem which can matter to the user."""
    return [line for line in lines if PROBLEM.search(line) and not HARMLESS.search(line)]


def _end(log: _Log, *, failed: bool) -> None:
    """Reports problems, removes an empty file and ends the watcher."""
    lines = of_mp3 = 0
    for line in log.lines(log.begin):
        lines, of_mp3 = lines + 1, of_mp3 + bool(OF_MP3.search(line))
    if message := native_problems():
        print(f"warning: {message}", file=sys.stderr)
    elif failed and lines:
        print(f"native libraries: {lines} line{'s' * (lines > 1)} in {log.path}", file=sys.stderr)
    if of_mp3:
        print(f"warning: MP3 files have errors: {of_mp3} line{'s' * (of_mp3 > 1)} in {log.path}", file=sys.stderr)
    with contextlib.suppress(OSError):
        if not log.path.stat().st_size:
            log.path.unlink()
    if log.watcher and log.watcher.stdin:
        faulthandler.unregister(signal.SIGTERM)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            log.watcher.communicate(b"done\n", timeout=5)


def _new_file() -> Path:
    """Makes the file of a command, and removes files of earlier commands that are older than KEPT_DAYS."""
    if given := os.environ.get(VARIABLE):
        path = Path(given)
        _append(path, b"")
        return path
    folder = Path(CACHES) / FOLDER
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened, made = tempfile.mkstemp(prefix=name, suffix=".log", dir=folder)
    except OSError:  # a home folder that cannot be written
        opened, made = tempfile.mkstemp(prefix=f"asr_jax-{name}", suffix=".log")
    os.close(opened)
    with contextlib.suppress(OSError):
        for other in folder.glob("*.log"):
            if time.time() - other.stat().st_mtime > KEPT_DAYS * 86_400:
                other.unlink()
    return Path(made)


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def _send(path: Path) -> None:
    """Redirects descriptor 2 to the end of a file. The lock tells `asr_jax.clean` that the file is in use."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(opened, 2)
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(2, fcntl.LOCK_SH)
    finally:
        os.close(opened)


def _move_stderr(terminal: int) -> None:
    """Opens `sys.stderr`, the handlers of `logging` and faulthandler on a descriptor of the terminal."""
    former = sys.stderr
    former.flush()
    sys.stderr = open(  # noqa: SIM115  it is open until the process ends
        terminal, "w", buffering=1, encoding=former.encoding, errors=former.errors, closefd=False
    )
    loggers = [
        logging.root,
        *(each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)),
    ]
    for handler in {handler for logger in loggers for handler in logger.handlers}:  # libraries have made some
        if isinstance(handler, logging.StreamHandler) and handler.stream is former:
            handler.setStream(sys.stderr)
    faulthandler.enable(terminal)


def _watch(log: _Log, terminal: int) -> subprocess.Popen[bytes] | None:
    """Starts the process that reports if this one is killed. In a session of its own, Ctrl-C does not reach it."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "sh", str(log.path.absolute()), str(log.begin)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            start_new_session=True,
            bufsize=0,
        )
    except OSError:
        return None


def _tell_watcher(log: _Log) -> None:
    """Sends the watcher the place of the lines of this command."""
    if log.watcher and log.watcher.stdin:
        with contextlib.suppress(OSError):
            log.watcher.stdin.write(os.fsencode(f"log {log.begin} {log.path.absolute()}\n"))


def _note_sigterm(watcher: subprocess.Popen[bytes] | None) -> None:
    """Lets SIGTERM write to the watcher before it ends the process.

    A handler of Python would have to wait for the end of a computation in native code; that of faulthandler does not.
    """
    if watcher and watcher.stdin and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.register(signal.SIGTERM, file=watcher.stdin.fileno(), all_threads=False, chain=True)


def _descriptor(stream: object) -> int:
    try:
        return stream.fileno() if isinstance(stream, io.TextIOBase) else -1
    except (OSError, ValueError):
        return -1
