#!/usr/bin/env bash
# Lint, types and the CPU tests: what must pass before a change lands. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python -m pytest -m "not slow and not gpu" -n 2 --dist loadfile --durations 15 "$@"
