#!/usr/bin/env bash
# Lint, types and the tests that compile no program, in under a minute: while working. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy &
failed=0
.venv/bin/python -m pytest --compile-nothing -m "not slow and not gpu" -n 2 --dist loadfile -o addopts="-ra --strict-markers" \
    tests/data tests/text tests/metrics tests/scripts tests/test_layering.py tests/cli/test_tokenizer.py "$@" || failed=1
wait $! || failed=1
exit $failed
