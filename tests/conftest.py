"""Settings before JAX starts: virtual CPU devices, to test sharding, and a compilation cache for all checkouts."""

# ruff: noqa: E402

import atexit
import contextlib
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "asr_jax" / "tests"
KEPT_DAYS = 14
"""Age in days after which a cached program is deleted; programs of older code are never used again."""

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "ASR_JAX_INDEX_CACHE" not in os.environ:
    os.environ["ASR_JAX_INDEX_CACHE"] = tempfile.mkdtemp(prefix="asr_jax-index-")
    atexit.register(shutil.rmtree, os.environ["ASR_JAX_INDEX_CACHE"], ignore_errors=True)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # tests compile many small programs

import jax
import pytest
import typecheck  # noqa: F401  before the package is imported

# Helper modules with assertions, which pytest explains.
pytest.register_assert_rewrite(
    "beam_lists", "conv_asr", "encoder_suite", "margins", "recordings", "streaming_suite", "support", "tests.forked",
    "tests.inference.streams", "tests.models.streaming_suite", "tests.search.unchecked", "tests.support",
    "wav2vec2_programs",
)  # fmt: skip

jax.config.update("jax_numpy_rank_promotion", "raise")
if os.environ["JAX_PLATFORMS"] == "cpu":
    jax.config.update("jax_num_cpu_devices", 4)
    os.environ.setdefault("NPROC", "8")  # with fewer threads, collectives deadlock: see core/environment.py


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compile-nothing", action="store_true", help="fail if a program is compiled")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("compile_nothing"):
        jax.monitoring.register_event_duration_secs_listener(_refuse_to_compile)


def _refuse_to_compile(event: str, duration: float, **options: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        raise RuntimeError(f"a program is compiled ({options}): remove this test from scripts/check.sh")


def pytest_sessionstart(session: pytest.Session) -> None:
    for program in CACHE.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another worker removed it
            if time.time() - program.stat().st_mtime > KEPT_DAYS * 86400:
                program.unlink()


def pytest_collection_finish(session: pytest.Session) -> None:
    # Modules and tests are never freed; garbage collections that visited them took 5 % of the time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also in a job in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
