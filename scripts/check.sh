#!/usr/bin/env bash
# Runs lint, types and the tests of the folders below, which compile no program (--compile-nothing makes a compilation an
# error), in under a minute on two cores: for use while working. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
types=$(mktemp)
.venv/bin/mypy > "$types" 2>&1 &
mypy=$!
trap 'kill $mypy 2>/dev/null || true; rm -f "$types"' EXIT
failed=0
# Without the check of array types at every call (jaxtyping), whose import takes longer than many of these tests.
.venv/bin/python -m pytest --compile-nothing -m "not slow and not gpu" -n 2 --dist loadfile -o addopts="-ra --strict-markers" \
    tests/data tests/text tests/metrics tests/scripts tests/test_layering.py tests/cli/test_tokenizer.py "$@" || failed=1
wait $mypy || failed=1
cat "$types"
exit $failed
