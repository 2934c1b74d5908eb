"""Freed memory that glibc keeps where a CPU computes."""

import ctypes
import functools
import glob
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from asr_jax.core.text_files import read_lines, read_text

KEEP_MEMORY = "ASR_JAX_KEEP_MEMORY"
"""Environment variable: 0 leaves the settings of glibc's allocator as they are."""
ACCELERATORS = "/dev/nvidia[0-9]*", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"
"""Device files of NVIDIA GPUs and of TPUs."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""Parameters of mallopt, from glibc's malloc.h."""
KEPT = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 256 << 20}
"""Parameters with which glibc keeps freed memory and extends the heap by 256 MB at a time."""
RETURNED = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20, M_TOP_PAD: 128 << 10}
"""glibc's defaults, with the largest values of its dynamic thresholds."""
GROWTH, SLACK = 1.25, 1 << 30
"""Limit of the process's memory: `GROWTH` times the peak of allocated memory, and `SLACK` bytes in addition."""
SHORT = 0.25
"""glibc's defaults are restored below this available share of the memory."""
INTERVAL = 0.5
"""Seconds between two measurements of memory."""
MEMORY, RESIDENT = Path("/proc/meminfo"), Path("/proc/self/statm")
"""Linux's files of the machine's memory and of the process's."""
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Linux's file of the process's control groups, and the folder of control groups."""
VERSIONS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Folder, files of limit and usage, and name of the inactive file cache, by controller: versions 2 and 1."""


def limit_arenas() -> None:
    """Limits glibc to one arena, if the process will compute on the CPU.

    The memory of other arenas cannot be kept. The limit has an effect only before threads have created them, and it
    cannot be lifted again.
    """
    if is_kept():
        _library().mallopt(M_ARENA_MAX, 1)


@functools.cache
def keep_memory() -> None:
    """Lets glibc keep freed memory for the next allocation, if the process computes on the CPU.

    XLA allocates the buffers of every call of a program, and frees them. By default, glibc returns large buffers to the
    system, which clears each page again at its next use. In a small model this takes a quarter of an update.

    Kept memory is fragmented: a program's temporary buffer often does not fit where the one before was. Large models
    would take a multiple of their memory. A thread therefore returns free memory above the limit of `GROWTH` and
    `SLACK`. If little memory is available, it restores glibc's defaults and ends.
    """
    if is_kept():
        _set(KEPT)
        threading.Thread(target=_limit, name="kept memory", daemon=True).start()


@functools.cache
def is_kept() -> bool:
    """Returns whether glibc keeps freed memory in this process.

    It does where JAX will use the CPU, on Linux with glibc 2.33 or newer, unless `KEEP_MEMORY` is 0, or the environment
    configures glibc's allocator or loads another one.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    on_cpu = platforms == "cpu" if platforms else not any(glob.glob(pattern) for pattern in ACCELERATORS)
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    configured = tuned or any(name.startswith("MALLOC_") for name in os.environ)
    replaced = "malloc" in os.environ.get("LD_PRELOAD", "")
    is_off = os.environ.get(KEEP_MEMORY) == "0" or configured or replaced
    return on_cpu and not is_off and MEMORY.exists() and hasattr(_library(), "mallinfo2")


def _limit() -> None:
    peak, outside = 0, 0  # peak of allocated bytes; bytes that the process has from other allocators
    try:
        while available() > SHORT:
            resident, allocated = resident_bytes(), _allocated()
            peak, outside = max(peak, allocated), min(outside, max(0, resident - allocated))
            if resident > outside + GROWTH * peak + SLACK:
                _library().malloc_trim(0)
                outside = max(0, resident_bytes() - _allocated())
            time.sleep(INTERVAL)
    finally:
        _set(RETURNED)
        _library().malloc_trim(0)


def resident_bytes() -> int:
    """Returns the bytes of the process's memory without mapped files."""
    _, resident, shared, *_ = read_text(RESIDENT).split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _allocated() -> int:
    """Returns the bytes that glibc has allocated and that are not freed."""
    mapped, allocated = 4, 7  # fields hblkhd and uordblks
    numbers = _library().mallinfo2().numbers
    return numbers[mapped] + numbers[allocated]


def available() -> float:
    """Returns the available share of the machine's memory, or of a control group's limit if that is smaller.

    The process's control groups and the groups above them may have a limit. The share is 0 if the kernel does not
    report it.
    """
    return min((free / max(most, 1) for free, most in _available()), default=0.0)


def available_bytes() -> int:
    """Returns the available bytes of the machine's memory, or of a control group if they are fewer; 0 as above."""
    return min((free for free, _ in _available()), default=0)


def _available() -> list[tuple[int, int]]:
    """Returns available and all bytes of the machine and of each control group. Empty: the kernel does not report."""
    try:
        machine = {name: 1024 * kilobytes for name, kilobytes in _fields(MEMORY).items()}
        return [(machine["MemAvailable"], machine["MemTotal"]), *_available_in_groups()]
    except (OSError, LookupError, ValueError):
        return []


def _available_in_groups() -> Iterator[tuple[int, int]]:
    for line in read_lines(OWN_GROUPS):
        _, controllers, path = line.split(":", 2)
        controller = "memory" if "memory" in controllers.split(",") else controllers
        if controller not in VERSIONS:
            continue
        top, limit, usage, unused = VERSIONS[controller]
        own = GROUPS / top / path.strip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(GROUPS / top) or not (folder / limit).exists():
                continue
            if (most := read_text(folder / limit).strip()) != "max":
                used = int(read_text(folder / usage)) - _fields(folder / "memory.stat")[unused]
                yield int(most) - used, int(most)


def _fields(path: Path) -> dict[str, int]:
    return {line.split()[0].rstrip(":"): int(line.split()[1]) for line in read_lines(path)}


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
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library
