"""What must be set before JAX starts. Importing this module sets it, so commands and tests import it first."""

import os

# XLA's CPU client sizes its thread pool by NPROC (or the number of cores). Collectives between virtual CPU devices
# need a thread each, and block it: with fewer threads than twice the devices, steps that are dispatched without
# waiting deadlock. 16 serves up to 8 virtual devices and costs nothing measurable with one.
os.environ.setdefault("NPROC", "16")

# Compiled programs are kept for the next start: a quickstart that compiles for a minute then starts in seconds.
CACHES = os.path.expanduser(os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "asr_jax"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(CACHES, "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
