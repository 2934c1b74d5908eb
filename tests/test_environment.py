"""Environment variables that the package sets before JAX starts, for any first import."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from asr_jax.core.environment import NUM_CORES

FLAG = "xla_force_host_platform_device_count"


@pytest.fixture
def allocator() -> ModuleType:
    """A copy of the module, whose names a test can replace while a thread of the original runs in this process."""
    spec = importlib.util.find_spec("asr_jax.core.allocator")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"JAX_NUM_CPU_DEVICES": "400"}, marks=pytest.mark.slow),
        {"XLA_FLAGS": f"--{FLAG}=2 --{FLAG}=400"},
    ],
)
def test_any_import_of_the_package_sets_threads_and_compile_cache(flags):
    code = "import asr_jax.core.errors, jax, os; print(os.environ.get('NPROC'), jax.config.jax_compilation_cache_dir)"
    ours = ("NPROC", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | flags
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    threads, cache = done.stdout.split()
    assert threads == ("800" if flags else "None" if NUM_CORES > 1 else "2")
    assert cache.endswith("asr_jax/compiled")


def printed(code: str, **environment: str) -> int:
    """Returns the number that `code` prints in a new process with the package's settings."""
    code = f"import resource, time\nfrom asr_jax.core import environment, allocator\n{code}"
    set_here = ("ASR_JAX_KEEP_MEMORY", "LD_PRELOAD", "GLIBC_TUNABLES")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", *set_here))}
    command = [sys.executable, "-c", code]
    return int(subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True).stdout)


glibc_only = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or newer"
)


@pytest.mark.slow
@glibc_only
def test_freed_memory_is_kept_where_the_cpu_computes_and_returned_when_it_is_short() -> None:
    faults = (
        "from_start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(30): b'x' * 64_000_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - from_start)"
    )
    keeping = f"allocator.SHORT = 0.0\nallocator.keep_memory()\n{faults}"
    freed = printed(keeping, JAX_PLATFORMS="cpu", ASR_JAX_KEEP_MEMORY="0")
    assert printed(keeping, JAX_PLATFORMS="cpu") < freed / 2
    assert printed(keeping, JAX_PLATFORMS="cuda") > freed / 2
    assert printed(keeping, JAX_PLATFORMS="cpu", MALLOC_TOP_PAD_="0") > freed / 2
    returned = f"allocator._set(allocator.KEPT)\nallocator.SHORT = 1.0\nallocator._limit()\n{faults}"
    assert printed(returned, JAX_PLATFORMS="cpu") > freed / 2


@glibc_only
@pytest.mark.parametrize(("slack", "is_returned"), [(50_000_000, True), (2_000_000_000, False)])
def test_free_memory_is_returned_where_it_exceeds_the_limit(slack: int, is_returned: bool) -> None:
    # The last block is above the freed ones, which therefore are not at the end of the heap.
    code = (
        f"allocator.SLACK, allocator.INTERVAL, allocator.SHORT = {slack}, 0.01, 0.0\n"
        "allocator._set(allocator.KEPT)\n"
        "blocks = [b'x' * 16_000_000 for _ in range(40)]\n"
        "del blocks[:-1]\n"
        "allocator.keep_memory()\n"
        f"until = time.monotonic() + {30 if is_returned else 0.3}\n"
        "while allocator.resident_bytes() > 320_000_000 and time.monotonic() < until: time.sleep(0.01)\n"
        "print(allocator.resident_bytes())"
    )
    assert (printed(code, JAX_PLATFORMS="cpu") <= 320_000_000) == is_returned


@glibc_only
def test_an_error_of_the_thread_restores_the_defaults(allocator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(allocator, "_set", found.append)
    monkeypatch.setattr(allocator, "SHORT", -1.0)
    monkeypatch.setattr(allocator, "RESIDENT", Path("absent"))
    with pytest.raises(FileNotFoundError):
        allocator._limit()
    assert found == [allocator.RETURNED]


@glibc_only
def test_other_c_libraries_are_not_changed(allocator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ASR_JAX_KEEP_MEMORY",
        "LD_PRELOAD",
        "GLIBC_TUNABLES",
        *(each for each in os.environ if each.startswith("MALLOC_")),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert allocator.is_kept.__wrapped__()
    monkeypatch.setattr(allocator, "_library", lambda: object())
    assert not allocator.is_kept.__wrapped__()


@pytest.mark.parametrize("group", ["/", "/job_1/step_2"])
@pytest.mark.parametrize(
    ("line", "top", "files"),
    [
        ("0::", "", ("memory.max", "memory.current", "inactive_file")),
        ("4:memory:", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_available_memory_is_that_of_the_machine_or_of_a_control_group(
    line: str,
    top: str,
    files: tuple[str, str, str],
    group: str,
    allocator: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocator, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(allocator, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(allocator, "GROUPS", tmp_path)
    limit, usage, unused = files
    (tmp_path / "cgroup").write_text(f"5:cpu:/other\n{line}{group}\n")
    (tmp_path / top).mkdir(exist_ok=True)
    limited = tmp_path / top / "job_1" if group != "/" else tmp_path / top
    limited.mkdir(exist_ok=True)
    (tmp_path / "meminfo").write_text(
        "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  6000 kB\nHugePages_Total:  0\n"
    )
    assert allocator.available() == 0.75
    (limited / limit).write_text("max\n" if not top else "9223372036854771712\n")
    (limited / usage).write_text("3584000\n")
    (limited / "memory.stat").write_text(f"anon 3072000\n{unused} 512000\n")
    assert allocator.available() == 0.75
    (limited / limit).write_text("4096000\n")
    assert allocator.available() == 0.25
    (limited / "memory.stat").write_text("anon 3072000\n")
    assert allocator.available() == 0
    (limited / limit).unlink()
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\n")
    assert allocator.available() == 0
