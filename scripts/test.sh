#!/usr/bin/env bash
# Runs lint, mypy and the CPU tests without the slow ones, on all cores; all must pass before a change is merged.
# Arguments are passed to pytest.
#   ASR_JAX_LIMITS   factor of the limits of all comparisons (default: 1); .ci/run sets 0.5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
# KenLM has no wheel; its tests run only if it can be built.
compiler=$(command -v c++ || command -v g++ || true)
include=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
building=
if [ -n "$compiler" ] && echo '#include <Python.h>' | "$compiler" -fsyntax-only -x c++ -I"$include" - 2>/dev/null; then
    ASR_JAX_EXTRAS="lm${ASR_JAX_EXTRAS:+,$ASR_JAX_EXTRAS}" ./scripts/setup.sh &
    building=$!
    trap 'wait "$building"' EXIT  # not to leave pip behind if lint fails
else
    echo "test.sh: no C++ compiler (c++ or g++) with the headers of Python: the tests that need KenLM are skipped"
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
wait $building
# Test programs run only briefly, and LLVM's optimisations would take a fifth of the total time. The differences from
# the goldens are the same without them (BUILD_NOTES.md). Code that is generated in one part, not in 32 threads, takes a
# tenth less time of two processors.
export PYTHONDONTWRITEBYTECODE=  # otherwise each process of the tests compiles all modules
export XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# XLA's compiler allocates small objects all the time. Where the system has jemalloc, the tests take a tenth less time.
# The loader prints an error for a library that is not there.
jemalloc=libjemalloc.so.2
[ -n "$(LD_PRELOAD=$jemalloc env true 2>&1)" ] || export LD_PRELOAD="$jemalloc${LD_PRELOAD:+:$LD_PRELOAD}"
.venv/bin/python -m pytest -m "not slow and not gpu" -n auto --dist loadfile --durations 15 "$@"
