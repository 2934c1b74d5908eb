#!/usr/bin/env bash
# Runs scripts/test.sh, which excludes the slow tests, with three instruction sets of an x86-64 CPU: its own, AVX2 and
# SSE4.2, which round differently. The compilation caches are empty. It takes 30 to 60 minutes on two cores and is
# intended for releases. Arguments are passed to pytest.
# At the end it prints a report: which runs passed, and which comparisons use more than half of their tolerance.
#   ASR_JAX_REPORT   additional file for the report, relative to the checkout
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$(uname -m)" in
    x86_64 | amd64) ;;
    *) echo "test_instruction_sets.sh: this CPU is $(uname -m); --xla_cpu_max_isa is for x86_64" >&2; exit 2 ;;
esac
report=${ASR_JAX_REPORT:-/dev/null}
: >>"$report"  # If the report cannot be written, fail now instead of in an hour.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=""
for isa in default AVX2 SSE4_2; do
    flags="${XLA_FLAGS:-}"
    [ "$isa" = default ] || flags+=" --xla_cpu_max_isa=$isa"
    echo "=== $isa"
    : >"$folder/$isa.jsonl"  # It stays empty if the run ends before the first test.
    XLA_FLAGS="$flags" JAX_COMPILATION_CACHE_DIR="$folder/cache-$isa" ASR_JAX_COMPARISONS="$folder/$isa.jsonl" \
        ./scripts/test.sh "$@" || failed+=" $isa"
done
result="scripts/test.sh passes under all three instruction sets"
[ -z "$failed" ] || result="scripts/test.sh fails under$failed"
{ echo "$result"; .venv/bin/python tests/comparisons.py "$folder"/{default,AVX2,SSE4_2}.jsonl; } | tee "$report"
[ -z "$failed" ] || { echo "test_instruction_sets.sh: $result" >&2; exit 1; }
