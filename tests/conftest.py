"""Set before JAX starts: virtual CPU devices, so that sharding is always exercised, and a shared compile cache."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "ASR_JAX_INDEX_CACHE" not in os.environ:
    os.environ["ASR_JAX_INDEX_CACHE"] = tempfile.mkdtemp(prefix="asr_jax-index-")
    atexit.register(shutil.rmtree, os.environ["ASR_JAX_INDEX_CACHE"], ignore_errors=True)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # tests compile much that is small, and often

import jax

import asr_jax  # noqa: F401  sets NPROC: without it collectives of virtual devices deadlock

jax.config.update("jax_numpy_rank_promotion", "raise")
if os.environ["JAX_PLATFORMS"] == "cpu":
    jax.config.update("jax_num_cpu_devices", 4)
