#!/usr/bin/env bash
# From nothing to a trained recogniser and its error rate: environment, made speech, training, evaluation on voices that
# it never heard, three transcripts. No data to find, no GPU, no network beyond the package index. What is done already
# is not done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
exec .venv/bin/python -m asr_jax.quickstart "$@"
