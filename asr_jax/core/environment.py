"""Environment variables that JAX reads when it starts.

Importing this module sets them, and lets glibc keep memory where a CPU computes. Commands and tests therefore import it
first.
"""

import os

from asr_jax.core.allocator import limit_arenas

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

limit_arenas()
