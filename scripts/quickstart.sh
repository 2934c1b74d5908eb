#!/usr/bin/env bash
# Makes the environment, synthetic speech and a trained recogniser, evaluates it on voices that are not in the training
# data, and transcribes three files. Needs no data, no GPU, and no network except the package index. Completed stages
# are not repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
exec .venv/bin/python -m asr_jax.quickstart "$@"
