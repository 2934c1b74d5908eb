"""Freed memory that glibc keeps where a CPU computes."""

import ctypes
import functools
import glob
import os
import threading
import time
from pathlib import Path
from typing import ClassVar

KEEP_MEMORY = "ASR_JAX_KEEP_MEMORY"
"""Environment variable: 0 leaves the settings of glibc's allocator as they are."""
ACCELERATORS = "/dev/nvidia[0-9]*", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"
"""Device files of NVIDIA GPUs and of TPUs."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""Parameters of mallopt, from glibc's malloc.h."""
KEPT = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 256 << 20}
RETURNED = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20, M_TOP_PAD: 128 << 10}
"""glibc's defaults, with the largest thresholds that it adapts to."""
GROWTH, SLACK = 1.25, 1 << 30
"""Limit of the process's memory: `GROWTH` times the most allocated memory, and `SLACK` bytes in addition."""
SHORT = 0.25
"""Share of the memory that is available when glibc's defaults are restored."""
INTERVAL = 0.5
"""Seconds between two measurements of memory."""
MEMORY, RESIDENT = Path("/proc/meminfo"), Path("/proc/self/statm")
"""Linux's files of the machine's memory and of the process's."""
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Linux's file of the process's control groups, and the folder of control groups."""


def keep_memory() -> None:
    """Lets glibc keep freed memory for the next allocation, if the process will compute on the CPU.

    XLA allocates the buffers of every call of a program, and frees them. By default, glibc returns large buffers to the
    system, which clears each page again at its next use. In a small model this takes a quarter of an update. The
    function does nothing if the C library is not glibc 2.33 or newer.
    """
    if is_kept():
        _set(KEPT)


@functools.cache
def is_kept() -> bool:
    """Returns whether glibc keeps freed memory in this process: there are glibc and Linux, and JAX will use the CPU."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    on_cpu = platforms == "cpu" if platforms else not any(glob.glob(pattern) for pattern in ACCELERATORS)
    return on_cpu and os.environ.get(KEEP_MEMORY) != "0" and MEMORY.exists() and hasattr(_library(), "mallinfo2")


@functools.cache
def limit_kept_memory() -> None:
    """Starts a thread that returns kept memory to the system where it grows or little memory is available.

    Kept memory is fragmented: a program's temporary buffer often does not fit where the one before was. Large models
    would take a multiple of their memory.
    """
    if is_kept():
        threading.Thread(target=_limit, name="kept memory", daemon=True).start()


def _limit() -> None:
    most, outside = 0, 0  # most allocated bytes; bytes that the process has from other allocators
    while available() > SHORT:
        most = max(most, _allocated())
        if _resident() > outside + GROWTH * most + SLACK:
            _library().malloc_trim(0)
            outside = max(0, _resident() - _allocated())
        time.sleep(INTERVAL)
    _set(RETURNED)
    _library().malloc_trim(0)


def _resident() -> int:
    """Returns the bytes of the process's memory without mapped files."""
    _, resident, shared, *_ = RESIDENT.read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _allocated() -> int:
    mapped, allocated = 4, 7  # fields hblkhd and uordblks
    numbers = _library().mallinfo2().numbers
    return numbers[mapped] + numbers[allocated]


def available() -> float:
    """Returns the available share of the machine's memory, or of the limit of a control group if that is smaller.

    The process's group and the groups above it may have a limit (version 2 of control groups). The share is 0 if the
    kernel does not report it.
    """
    machine = _fields(MEMORY)
    share = machine.get("MemAvailable", 0) / machine["MemTotal"]
    paths = [line[3:] for line in OWN_GROUPS.read_text().splitlines() if line.startswith("0::")]
    own = GROUPS.joinpath(*(path.strip("/") for path in paths))
    for folder in (own, *own.parents):
        limit = folder / "memory.max"
        if limit.exists() and (most := limit.read_text().strip()) != "max":
            share = min(share, 1 - _fields(folder / "memory.stat")["anon"] / int(most))
    return share


def _fields(path: Path) -> dict[str, int]:
    return {line.split()[0].rstrip(":"): int(line.split()[1]) for line in path.read_text().splitlines()}


def _set(parameters: dict[int, int]) -> None:
    for parameter, value in parameters.items():
        _library().mallopt(parameter, value)


class _Information(ctypes.Structure):
    """The ten numbers of struct mallinfo2, from glibc's malloc.h."""

    _fields_: ClassVar = [("numbers", ctypes.c_size_t * 10)]


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if hasattr(library, "mallinfo2"):
        library.mallinfo2.restype = _Information
    return library
