#!/usr/bin/env bash
# Trains the same experiment with several random seeds, and prints mean, standard deviation, best, worst and median of
# the results: scripts/stability.sh CONFIG N [flags of asr_jax.train]
# An interrupted call can be repeated and continues. Needs ./scripts/setup.sh before.
#   OUT    folder of the runs seed-0 … seed-(N-1) (default: runs/stability-NAME, with the name of the config's file)
#   DATA   manifests to evaluate on, separated by spaces (default: the validation set of the runs)
#   SEED   first random seed (default: 0)
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: scripts/stability.sh CONFIG N [flags of asr_jax.train], with N of at least 1" >&2
    exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python config=$1 number=$2
shift 2
[ -x "$python" ] || { echo "stability.sh: no $python: run ./scripts/setup.sh first" >&2; exit 2; }
name=$(basename "$config")
out=${OUT:-runs/stability-${name%.py}} first=${SEED:-0} runs=()
for ((seed = first; seed < first + number; seed++)); do
    echo "stability: seed $seed in $out/seed-$seed"
    "$python" -m asr_jax.train --config "$config" "$@" --seed "$seed" --run-dir "$out/seed-$seed"
    runs+=("$out/seed-$seed")
done
if [ -n "${DATA:-}" ]; then
    read -r -a data <<< "$DATA"
elif [ -f "${runs[0]}/validation_split/validation.jsonl" ]; then
    data=("${runs[0]}/validation_split/validation.jsonl")
else
    mapfile -t data < <("$python" -c '
import json, sys
print("\n".join(json.load(open(sys.argv[1]))["data"]["validation"]))' "${runs[0]}/experiment.json")
fi
"$python" -m asr_jax.evaluate "${runs[@]}" --data "${data[@]}" --json "$out/results.json"
echo "stability: all figures are in $out/results.json"
