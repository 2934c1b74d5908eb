"""Environment variables that JAX reads when it starts.

Importing this module sets them, and lets glibc keep memory where a CPU computes. Commands and tests therefore import it
first.
"""

import ctypes
import glob
import os

# XLA's CPU client sizes its thread pool by NPROC (default: the number of cores). A collective between virtual CPU
# devices blocks one thread per device. With fewer threads than twice the number of devices, programs that are
# dispatched asynchronously deadlock. 16 threads serve up to 8 virtual devices and have no measurable cost with one.
os.environ.setdefault("NPROC", "16")

# JAX keeps compiled programs in this cache. The next start then takes seconds instead of a minute.
CACHES = os.path.expanduser(os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "asr_jax"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(CACHES, "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

# JAX allocates this share of a GPU's memory when it starts. Its default of 0.75 leaves 21 GB of an H100 unused. JAX
# refuses to start if both names of the variable are set.
DEPRECATED = "XLA_PYTHON_CLIENT_MEM_FRACTION"
GPU_SHARE = DEPRECATED if DEPRECATED in os.environ else "XLA_CLIENT_MEM_FRACTION"
os.environ.setdefault(GPU_SHARE, "0.92")

KEEP_MEMORY = "ASR_JAX_KEEP_MEMORY"
"""Environment variable: 0 leaves the settings of glibc's allocator as they are."""
ACCELERATORS = "/dev/nvidia[0-9]*", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"
"""Device files of NVIDIA GPUs and of TPUs."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
"""Parameters of mallopt, from glibc's malloc.h."""


def keep_memory() -> None:
    """Lets glibc keep freed memory for the next allocation.

    XLA allocates the buffers of every call of a program, and frees them. By default, glibc returns large buffers to the
    system, which clears each page again at its next use. In a small model this takes a quarter of an update. The
    function does nothing if the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_TOP_PAD, 256 << 20)


def computes_on_cpu() -> bool:
    """Returns whether JAX will use the CPU: JAX_PLATFORMS selects it, or there is no GPU or TPU."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    return platforms == "cpu" if platforms else not any(glob.glob(pattern) for pattern in ACCELERATORS)


if os.name == "posix" and os.environ.get(KEEP_MEMORY) != "0" and computes_on_cpu():
    keep_memory()
