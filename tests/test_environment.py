"""Environment variables that the package sets before JAX starts, for any first import."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr_jax.core import kept_memory


def test_any_import_of_the_package_sets_threads_and_compile_cache():
    code = "import asr_jax.core.errors, jax, os; print(os.environ['NPROC'], jax.config.jax_compilation_cache_dir)"
    ours = ("NPROC", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    threads, cache = done.stdout.split()
    assert threads == "16"
    assert cache.endswith("asr_jax/compiled")


def page_faults(code: str = "", **environment: str) -> int:
    """Returns the page faults of a process that runs `code`, and then allocates, fills and frees 64 MB thirty times."""
    code = (
        "import resource\n"
        "from asr_jax.core import environment, kept_memory\n"
        f"{code}\n"
        "for _ in range(30): b'x' * 64_000_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("ASR_JAX_KEEP_MEMORY", "LD_PRELOAD")}
    command = [sys.executable, "-c", code]
    return int(subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_freed_memory_is_kept_where_the_cpu_computes_and_returned_when_it_is_short() -> None:
    freed = page_faults(JAX_PLATFORMS="cpu", ASR_JAX_KEEP_MEMORY="0")
    assert page_faults(JAX_PLATFORMS="cpu") < freed / 2
    assert page_faults(JAX_PLATFORMS="cuda") > freed / 2
    assert page_faults("kept_memory.SHORT = 1.0; kept_memory._return_when_short()", JAX_PLATFORMS="cpu") > freed / 2


def test_c_libraries_without_mallopt_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "_library", lambda: object())
    monkeypatch.delenv("ASR_JAX_KEEP_MEMORY", raising=False)
    assert not kept_memory.is_kept.__wrapped__()


@pytest.mark.parametrize("group", ["/", "/job_1/step_2"])
def test_available_memory_is_that_of_the_machine_or_of_a_control_group(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(kept_memory, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(kept_memory, "GROUPS", tmp_path)
    (tmp_path / "cgroup").write_text(f"4:memory:/other\n0::{group}\n")
    limited = tmp_path / "job_1" if group != "/" else tmp_path
    limited.mkdir(exist_ok=True)
    (tmp_path / "meminfo").write_text(
        "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  6000 kB\nHugePages_Total:  0\n"
    )
    assert kept_memory.available() == 0.75
    (limited / "memory.max").write_text("max\n")
    assert kept_memory.available() == 0.75
    (limited / "memory.max").write_text("4096000\n")
    (limited / "memory.stat").write_text("anon 3072000\nfile 512000\n")
    assert kept_memory.available() == 0.25
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\n")
    assert kept_memory.available() == 0
