#!/usr/bin/env bash
# Runs the tests that take minutes, at most an hour in total; they must pass before an issue is closed. Arguments are
# passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
.venv/bin/python -m pytest -m "slow and not gpu" --durations 0 "$@"
