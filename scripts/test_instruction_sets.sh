#!/usr/bin/env bash
# The tests under three instruction sets of an x86-64 CPU, which round differently, with nothing compiled before: before a
# release, half an hour to an hour on two cores. Arguments go to pytest; without any, all of scripts/test.sh runs.
# Prints the result of each run and the comparisons that come nearer to their limit than half of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$(uname -m)" in
    x86_64 | amd64) ;;
    *) echo "test_instruction_sets.sh: this CPU is $(uname -m); --xla_cpu_max_isa is for x86_64" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
forget_rewritten() { find tests -name '*-pytest-*.pyc' -delete; }  # pytest rewrites assertions once, with or without reports
trap 'rm -rf "$folder"; forget_rewritten' EXIT
forget_rewritten
failed=""
for isa in default AVX2 SSE4_2; do
    flags="${XLA_FLAGS:-}"
    [ "$isa" = default ] || flags+=" --xla_cpu_max_isa=$isa"
    echo "=== $isa"
    XLA_FLAGS="$flags" JAX_COMPILATION_CACHE_DIR="$folder/cache-$isa" ASR_JAX_COMPARISONS="$folder/$isa.jsonl" PYTHONPATH=tests \
        ./scripts/test.sh -p comparisons -o enable_assertion_pass_hook=true "$@" || failed+=" $isa"
done
.venv/bin/python tests/comparisons.py "$folder"/{default,AVX2,SSE4_2}.jsonl
[ -z "$failed" ] || { echo "test_instruction_sets.sh: tests fail under$failed" >&2; exit 1; }
