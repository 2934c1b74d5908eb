"""Set before JAX starts: virtual CPU devices, so that sharding is always exercised, and a shared compile cache."""

import os
from pathlib import Path

import asr_jax.core.environment  # noqa: F401  sets NPROC: without it collectives of virtual devices deadlock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
if os.environ["JAX_PLATFORMS"] == "cpu":
    jax.config.update("jax_num_cpu_devices", 4)
