"""JAX's cache of compiled programs: used by the next start, but not on a CPU that cannot run the programs.

tests/core/test_programs.py covers the cache of traced programs.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import asr_jax.core.environment
import jax
import numpy as np

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("/cache_hits")))
jax.block_until_ready(jax.jit(lambda x: np.float32(3) * x @ x)(np.ones((8, 8), np.float32)))
print(sum(hits))
"""


def cache_hits(folder: Path, *, max_isa: str) -> int:
    """Returns the number of programs that a new process loads from the cache in `folder`, with at most `max_isa`."""
    flags = folder / "flags"
    flags.write_text(f"--xla_cpu_max_isa={max_isa}")  # a file of constant name keeps the text of XLA_FLAGS the same
    environment = os.environ | {
        "XLA_FLAGS": str(flags), "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="--xla_cpu_max_isa is for x86-64 CPUs")
@pytest.mark.slow
def test_a_program_of_another_instruction_set_is_not_taken(tmp_path: Path) -> None:
    assert cache_hits(tmp_path, max_isa="AVX") == 0
    assert cache_hits(tmp_path, max_isa="AVX") >= 1
    assert cache_hits(tmp_path, max_isa="SSE4_2") == 0
