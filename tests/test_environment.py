"""Environment variables that the package sets before JAX starts, for any first import."""

import os
import subprocess
import sys


def test_any_import_of_the_package_sets_threads_and_compile_cache():
    code = "import asr_jax.core.errors, jax, os; print(os.environ['NPROC'], jax.config.jax_compilation_cache_dir)"
    ours = ("NPROC", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    threads, cache = done.stdout.split()
    assert threads == "16"
    assert cache.endswith("asr_jax/compiled")
