"""Environment variables that the package sets before JAX starts, for any first import."""

import ctypes
import os
import subprocess
import sys

import pytest

from asr_jax.core.environment import keep_memory


def test_any_import_of_the_package_sets_threads_and_compile_cache():
    code = "import asr_jax.core.errors, jax, os; print(os.environ['NPROC'], jax.config.jax_compilation_cache_dir)"
    ours = ("NPROC", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    threads, cache = done.stdout.split()
    assert threads == "16"
    assert cache.endswith("asr_jax/compiled")


def page_faults(**environment: str) -> int:
    """Returns the page faults of a process that allocates, fills and frees 64 MB thirty times."""
    code = (
        "import asr_jax.core.environment, resource\n"
        "for _ in range(30): b'x' * 64_000_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("ASR_JAX_KEEP_MEMORY", "LD_PRELOAD")}
    command = [sys.executable, "-c", code]
    return int(subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_freed_memory_is_kept_where_the_cpu_computes() -> None:
    freed = page_faults(JAX_PLATFORMS="cpu", ASR_JAX_KEEP_MEMORY="0")
    assert page_faults(JAX_PLATFORMS="cpu") < freed / 2
    assert page_faults(JAX_PLATFORMS="cuda") > freed / 2


def test_c_libraries_without_mallopt_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_memory()
