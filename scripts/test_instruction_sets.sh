#!/usr/bin/env bash
# Runs scripts/test.sh, which leaves the slow tests out, under three instruction sets of an x86-64 CPU: its own, AVX2 and
# SSE4.2, which round differently. Nothing is compiled before. It takes half an hour to an hour on two cores and is meant
# to be run before a release. Arguments go to pytest.
# At the end it prints a report: which runs passed, and which comparisons take more than half of what is allowed.
#   ASR_JAX_REPORT   a file for the report as well, relative to the checkout
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$(uname -m)" in
    x86_64 | amd64) ;;
    *) echo "test_instruction_sets.sh: this CPU is $(uname -m); --xla_cpu_max_isa is for x86_64" >&2; exit 2 ;;
esac
report=${ASR_JAX_REPORT:-/dev/null}
: >>"$report"  # A report that cannot be written is an error now, not in an hour.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# What pytest rewrote before does not report its assertions: what it rewrites here lies in a folder of its own. Python
# compiles the libraries anew into that folder, too, and may warn of their source, which is no error of a test (-W).
export PYTHONPYCACHEPREFIX="$folder/pycache"
failed=""
for isa in default AVX2 SSE4_2; do
    flags="${XLA_FLAGS:-}"
    [ "$isa" = default ] || flags+=" --xla_cpu_max_isa=$isa"
    echo "=== $isa"
    : >"$folder/$isa.jsonl"  # It stays empty where the run ends before a test.
    XLA_FLAGS="$flags" JAX_COMPILATION_CACHE_DIR="$folder/cache-$isa" ASR_JAX_COMPARISONS="$folder/$isa.jsonl" PYTHONPATH=tests \
        ./scripts/test.sh -p comparisons -o enable_assertion_pass_hook=true -W ignore::SyntaxWarning "$@" || failed+=" $isa"
done
result="scripts/test.sh passes under all three instruction sets"
[ -z "$failed" ] || result="scripts/test.sh fails under$failed"
{ echo "$result"; .venv/bin/python tests/comparisons.py "$folder"/{default,AVX2,SSE4_2}.jsonl; } | tee "$report"
[ -z "$failed" ] || { echo "test_instruction_sets.sh: $result" >&2; exit 1; }
