#!/usr/bin/env bash
# Runs scripts/test.sh, which leaves out the slow tests, under three instruction sets of an x86-64 CPU, which round
# differently: the CPU's own, AVX2 and SSE4.2, each with an empty compile cache. It takes half an hour on two cores and
# belongs before a release. Prints the result of each run, and the comparisons that use more than half of their limit.
# Arguments go to pytest.
#   ASR_JAX_REPORT   a file to write that report to as well
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$(uname -m)" in
    x86_64 | amd64) ;;
    *) echo "test_instruction_sets.sh: this CPU is $(uname -m); --xla_cpu_max_isa is for x86_64" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=""
for isa in default AVX2 SSE4_2; do
    flags="${XLA_FLAGS:-}"
    [ "$isa" = default ] || flags+=" --xla_cpu_max_isa=$isa"
    echo "=== $isa"
    : > "$folder/$isa.jsonl"
    # pytest rewrites the assertions of a module once, with or without reports: hence bytecode in a folder of its own.
    XLA_FLAGS="$flags" JAX_COMPILATION_CACHE_DIR="$folder/cache-$isa" ASR_JAX_COMPARISONS="$folder/$isa.jsonl" \
        PYTHONPATH=tests PYTHONPYCACHEPREFIX="$folder/bytecode" \
        ./scripts/test.sh -p comparisons -o enable_assertion_pass_hook=true "$@" || failed+=" $isa"
done
.venv/bin/python tests/comparisons.py "$folder"/{default,AVX2,SSE4_2}.jsonl | tee "${ASR_JAX_REPORT:-/dev/null}"
[ -z "$failed" ] || { echo "test_instruction_sets.sh: tests fail under$failed" >&2; exit 1; }
