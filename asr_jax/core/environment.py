"""Environment variables that JAX reads when it starts.

Importing this module sets them, and lets glibc keep memory where a CPU computes. Commands and tests therefore import it
first.
"""

import os
import re

from asr_jax.core.allocator import limit_arenas

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Number of cores that this process may use."""

READING_THREADS = min(NUM_CORES, 8)
"""Number of threads that read audio in a process without workers."""


def reading_threads(given: int, *, workers: int = 0) -> int:
    """Returns the number of threads of each process that read audio.

    Args:
        given: Number that a setting asks for. 0: `READING_THREADS` without workers, two with workers.
        workers: Number of worker processes.
    """
    return given or (2 if workers else READING_THREADS)


THREADS_PER_DEVICE = 2
"""Least number of threads of XLA's CPU client for each virtual device of a CPU. A collective blocks one thread for each
device. With fewer threads, programs that are dispatched asynchronously deadlock."""

# The client reads NPROC. By default it has one thread per core, with which training is fastest.
_found = re.findall(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))  # the last counts
_needed = THREADS_PER_DEVICE * int((_found or [os.environ.get("JAX_NUM_CPU_DEVICES") or 1])[-1])
if _needed > NUM_CORES:
    os.environ.setdefault("NPROC", str(_needed))


def num_threads() -> int:
    """Returns the number of threads of XLA's CPU client, which ignores NPROC if it is not a positive number."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) else NUM_CORES


# JAX keeps compiled programs in this cache, so that the next start takes seconds instead of a minute. A run on GPUs or
# TPUs keeps its programs in its own folder (`core.programs.compiled_in`).
CACHES = os.path.expanduser(os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "asr_jax"))
_compiled = os.path.join(CACHES, "compiled")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _compiled)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


def has_default_cache() -> bool:
    """Returns whether JAX_COMPILATION_CACHE_DIR is the folder of this package in the user's cache folder."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") == _compiled


# JAX allocates this share of a GPU's memory when it starts. Its default of 0.75 leaves 21 GB of an H100 unused. JAX
# refuses to start if both names of the variable are set.
DEPRECATED = "XLA_PYTHON_CLIENT_MEM_FRACTION"
GPU_SHARE = DEPRECATED if DEPRECATED in os.environ else "XLA_CLIENT_MEM_FRACTION"
os.environ.setdefault(GPU_SHARE, "0.92")

limit_arenas()
