#!/usr/bin/env bash
# Runs lint, mypy and the tests that do not compile programs, in less than a minute on two idle cores; intended for use
# during development. The tests of the folders below compile nothing, and --compile-nothing makes a compilation an
# error. Arguments are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
types=$(mktemp)
# A background process ignores Ctrl-C, and mypy would continue.
mypy=""
trap '[ -z "$mypy" ] || kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
.venv/bin/mypy >"$types" 2>&1 &
mypy=$!
failed=0
# This addopts omits jaxtyping's hook of pyproject.toml, which slows the imports of each worker down by seconds;
# scripts/test.sh uses it.
.venv/bin/python -m pytest --compile-nothing -m "not slow and not gpu" -n 2 --dist loadfile -o addopts="-ra --strict-markers" \
    tests/data tests/text tests/metrics tests/scripts tests/test_layering.py tests/cli/test_tokenizer.py "$@" || failed=1
wait "$mypy" || failed=1
mypy=""
cat "$types"
exit $failed
