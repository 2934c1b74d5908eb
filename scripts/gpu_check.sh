#!/usr/bin/env bash
# Runs everything that needs a GPU in less than 9 minutes: the tests marked gpu; front-ends; training throughput of
# Zipformer-S and -M with synthetic batches and the real loader, with memory, roofline and an XLA trace; recognition
# with models of 115 and 120 M parameters (goal: 12,000 × real time). Writes figures as JSON.
#   --smoke            use tiny sizes on a CPU, to test only whether it runs
#   PYTHON             Python with jax (default: .venv/bin/python if it exists, otherwise python3)
#   ASR_JAX_SHARED     folder with data/read_speech_6h and goldens; without it, those parts are omitted
#   OUT                folder for figures and trace (default: benchmarks/results)
# Missing packages are installed from .wheels (see scripts/gpu_wheels.sh) to .carry/packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
smoke=""; [ "${1:-}" = "--smoke" ] && smoke="--smoke"
python=${PYTHON:-python3}; [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
out=${OUT:-benchmarks/results}; mkdir -p "$out"
shared=${ASR_JAX_SHARED:-../shared}

if ls .wheels/*.whl >/dev/null 2>&1; then
    missing=()
    for wheel in .wheels/*.whl; do
        name=$(basename "$wheel" | cut -d- -f1)
        "$python" -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$name" 2>/dev/null || missing+=("$wheel")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "gpu_check: installing ${#missing[@]} packages from .wheels"
        "$python" -m pip install --quiet --no-index --no-deps --target .carry/packages --upgrade "${missing[@]}"
        export PYTHONPATH="$PWD/.carry/packages${PYTHONPATH:+:$PYTHONPATH}"
    fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [ -z "$smoke" ]; then
    command -v nvidia-smi >/dev/null || { echo "gpu_check: no GPU was found (there is no nvidia-smi); --smoke runs on a CPU" >&2; exit 2; }
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
    export JAX_PLATFORMS=cuda,cpu
else
    export JAX_PLATFORMS=cpu
fi

started=$SECONDS
echo "gpu_check: tests marked gpu"
code=0
"$python" -m pytest -q -m gpu -p no:cacheprovider tests > "$out/gpu_tests.txt" 2>&1 || code=$?
tail -n 15 "$out/gpu_tests.txt"
[ "$code" = 5 ] && { echo "gpu_check: no test is marked gpu" >&2; exit 1; }

echo "gpu_check: front-ends"
size=(--seconds 20 --rows 64); [ -n "$smoke" ] && size=(--seconds 1 --rows 2 --repeats 1)
"$python" -m asr_jax.benchmark frontend "${size[@]}" --json "$out/frontend_gpu.json" || code=$?

echo "gpu_check: kernels"
size=(); [ -n "$smoke" ] && size=(--batch 2 --seq-len 16 --channels 8 --labels 4 --iterations 2 --warm-ups 1)
for precision in f32 bf16; do
    "$python" -m asr_jax.benchmark kernels ${size[@]+"${size[@]}"} --precision $precision --json "$out/kernels_gpu_$precision.json" || code=$?
done

data=()
manifests="$shared/data/read_speech_6h/manifests"
[ -f "$manifests/train.jsonl" ] && data=(--data "$manifests/train.jsonl" --validation "$manifests/val.jsonl")
echo "gpu_check: throughput"
"$python" benchmarks/training_throughput.py $smoke ${data[@]+"${data[@]}"} --json "$out/gpu_check.json" \
    --trace "$out/trace" || code=$?
# A copy with a fixed path, for machines from which only single files can be fetched.
find "$out/trace" -name 'perfetto_trace.json.gz' -exec cp {} "$out/perfetto_trace.json.gz" \; 2>/dev/null || true

echo "gpu_check: recognition, greedy CTC; goal for about 100 M parameters: 12,000 x real time"
models=(fastconformer conformer); sizes=(--batch-sizes 64 256 --seconds 16.7 --steps 30 --precision bf16)
[ -n "$smoke" ] && models=(conformer) && sizes=(--batch-sizes 1 --seconds 1 --steps 1 --warm-ups 1 --model.dim 16
    --model.num-layers 1 --model.subsampling-channels 8)
for model in "${models[@]}"; do
    "$python" -m asr_jax.benchmark inference --config "configs/${model}_librispeech.py" "${sizes[@]}" --no-published \
        --json "$out/inference_${model}_gpu.json" || code=$?
done
echo "gpu_check: done in $((SECONDS - started)) s, exit code $code; figures in $out/gpu_check.json"
exit $code
