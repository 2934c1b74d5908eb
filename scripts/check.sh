#!/usr/bin/env bash
# Runs lint, mypy and the tests that compile no program, in under a minute on two idle cores; it is meant to be run while
# working. The folders below are chosen because their tests compile nothing: --compile-nothing makes a compilation an
# error. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
types=$(mktemp)
# A process in the background ignores Ctrl-C, so that mypy would go on.
mypy=""
trap '[ -z "$mypy" ] || kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
.venv/bin/mypy >"$types" 2>&1 &
mypy=$!
failed=0
# This addopts lacks jaxtyping's hook of pyproject.toml, which makes each worker's imports seconds longer; scripts/test.sh
# has it.
.venv/bin/python -m pytest --compile-nothing -m "not slow and not gpu" -n 2 --dist loadfile -o addopts="-ra --strict-markers" \
    tests/data tests/text tests/metrics tests/scripts tests/test_layering.py tests/cli/test_tokenizer.py "$@" || failed=1
wait "$mypy" || failed=1
mypy=""
cat "$types"
exit $failed
