"""Several processes with one cache: the main process compiles the training programs, and the others load them."""

import re
import socket
import subprocess
import sys

import pytest

from tests.forked import ROOT, made_corpus, with_devices

PROGRAMS = ("gradient", "apply_update", "add_denominators", "add", "decode_ctc", "losses")


def outputs(manifests, folder, caches):
    """Runs one process for each folder of a cache, for two updates, and returns what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "asr_jax.train", "--config", ROOT / "tests/resume_config.py", "--run-dir", folder]
    command += ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    command += ["--training.num-updates", 2, "--training.validate-every", 2]
    jobs = [
        subprocess.Popen(
            list(map(str, command)), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=with_devices(
                1, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=str(len(caches)), JAX_PROCESS_ID=str(number),
                JAX_COMPILATION_CACHE_DIR=str(cache), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                JAX_DEBUG_LOG_MODULES="jax._src.compiler", ASR_JAX_NATIVE_LOG="-",
            ),
        )
        for number, cache in enumerate(caches)
    ]  # fmt: skip
    texts = [job.communicate(timeout=400)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(jobs), texts
    return texts


def compiled(output):
    """Returns the training programs that a process has not found in the cache."""
    return {
        name for name in PROGRAMS if re.search(rf"CACHE MISS for 'jit_{name}'", output, re.IGNORECASE)
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False], ids=["one cache", "a cache each"])
def test_one_process_compiles_if_all_share_the_cache(is_shared, tmp_path):
    manifests = made_corpus(tmp_path / "made")
    caches = [tmp_path / "cache", tmp_path / ("cache" if is_shared else "other")]
    first, second = outputs(manifests, tmp_path / "run", caches)
    assert compiled(first) == set(PROGRAMS)
    assert compiled(second) == (set() if is_shared else set(PROGRAMS))
