#!/usr/bin/env bash
# Runs everything that needs a GPU in one call, and writes the figures to DEVICE.json: the tests marked gpu; kernels and
# front-ends; training of each family in the precision of its config, with the real loader, memory, share of the peak rate
# and an XLA trace; recognition with models of 115 and 120 M parameters (goal: 12,000 × real time).
#   --smoke            use tiny sizes on a CPU, to test only whether it runs
#   SECONDS_LEFT       time limit in seconds (default: 530); parts that do not fit are named in DEVICE.json
#   FAMILIES           names of configs to train (default: all of the list below). A further call with other names keeps
#                      the parts in DEVICE.json that were measured with the same sources
#   PYTHON             Python with jax (default: .venv/bin/python if it exists, otherwise python3)
#   ASR_JAX_SHARED     folder with data/read_speech_6h and goldens; without it, training has synthetic batches
#   OUT                folder for the figures (default: benchmarks/results; with --smoke, a temporary folder)
# Missing packages are installed from .wheels (see scripts/gpu_wheels.sh) to .carry/packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
smoke=""; [ "${1:-}" = "--smoke" ] && smoke="--smoke"
python=${PYTHON:-python3}; [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
if [ -n "$smoke" ]; then out=${OUT:-$(mktemp -d)}; else out=${OUT:-benchmarks/results}; fi
shared=${ASR_JAX_SHARED:-../shared}
parts=$out/parts; rm -rf "$parts"; mkdir -p "$parts"

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
    unset XLA_PYTHON_CLIENT_MEM_FRACTION  # JAX refuses to start if both names of the variable are set
else
    export JAX_PLATFORMS=cpu
fi

started=$SECONDS limit=${SECONDS_LEFT:-530} code=0
[ -n "$smoke" ] && limit=${SECONDS_LEFT:-3600}

run() {  # name of the part, its time limit in seconds, and a command
    local name=$1 left=$((limit - SECONDS + started)) status=0
    echo "gpu_check: $name, after $((SECONDS - started)) s"
    if [ $left -lt 15 ]; then
        echo "$name: no time left" >> "$parts/omitted.txt"
        return 1
    fi
    [ -z "$smoke" ] && [ "$2" -lt $left ] && left=$2
    shift 2
    timeout -k 10 "$left" "$@" || status=$?
    [ $status = 0 ] && return
    echo "$name: exit code $status$([ $status = 124 ] && echo ", time limit of $left s")" >> "$parts/omitted.txt"
    return 1
}

if [ -z "$smoke" ] && ! "$python" -c "import jax_triton" 2>/dev/null; then
    echo "kernels of Triton: jax-triton is not installed" >> "$parts/omitted.txt"; code=1
fi
# shellcheck disable=SC2329  # exported
tests() { "$python" -m pytest -q -m gpu -p no:cacheprovider tests/test_gpu.py > "$parts/tests.txt" 2>&1; }
export -f tests; export python parts
run tests 150 bash -c tests || code=1
[ ! -f "$parts/tests.txt" ] || tail -n 15 "$parts/tests.txt"

size=(); [ -n "$smoke" ] && size=(--batch 2 --seq-len 16 --channels 8 --labels 4 --iterations 2 --warm-ups 1)
for precision in f32 bf16; do
    run "kernels_$precision" 90 "$python" -m asr_jax.benchmark kernels ${size[@]+"${size[@]}"} --precision $precision \
        --json "$parts/kernels_$precision.json" || code=1
done

models=(fastconformer conformer); sizes=(--batch-sizes 64 256 --seconds 16.7 --steps 30 --precision bf16)
[ -n "$smoke" ] && models=(conformer) && sizes=(--batch-sizes 1 --seconds 1 --steps 1 --warm-ups 1 --model.dim 16
    --model.num-layers 1 --model.subsampling-channels 8)
for model in "${models[@]}"; do  # greedy CTC
    run "inference_$model" 60 "$python" -m asr_jax.benchmark inference --config "configs/${model}_librispeech.py" \
        "${sizes[@]}" --json "$parts/inference_$model.json" || code=1
done

size=(--seconds 20 --rows 64); [ -n "$smoke" ] && size=(--seconds 1 --rows 2 --repeats 1)
run frontend 40 "$python" -m benchmarks.front_ends "${size[@]}" --json "$parts/frontend.json" || code=1

families=(
    zipformer conformer_librispeech fastconformer_librispeech squeezeformer_librispeech quartznet_librispeech
    zipformer_transducer rnnt_base wav2vec2_pretrain wav2vec2_finetune w2v_bert_finetune paraformer_rust
)
[ -n "$smoke" ] && families=(quartznet_librispeech conformer_librispeech)
[ -n "${FAMILIES:-}" ] && read -ra families <<< "$FAMILIES"
manifests="$shared/data/read_speech_6h/manifests"

# shellcheck disable=SC2329  # exported
train() {  # config, seconds of audio of a batch, options
    local config=$1 seconds=$2 data=(--synthetic 16 --batch $(($2 / 16))) tiny=() options=()
    shift 2
    [ -f "$manifests/train.jsonl" ] && data=(--data.train "$manifests/train.jsonl" --data.validation "$manifests/val.jsonl")
    case $config in
        wav2vec2_pretrain) options=(--model.sub-batches 1) ;;  # the config's batch has parts for 64 GPUs
        quartznet*|wav2vec2*|w2v_bert*) ;;  # characters
        *) options=(--data.tokenizer.vocab-size 500) ;;
    esac
    if [ -n "$smoke" ]; then
        case $config in
            quartznet*) tiny=(--model.encoder.copies 1) ;;
            *) tiny=(--model.encoder.dim 16 --model.encoder.num-layers 1 --model.encoder.subsampling-channels 8) ;;
        esac
    fi
    "$python" -m asr_jax.benchmark train --config "configs/$config.py" "${data[@]}" --data.batching.num-buckets 1 \
        --data.batching.unit padded-seconds --data.batching.budget "$seconds" --data.batching.max-rows 1024 \
        --data.batching.row-multiple 1 --training.accumulate 1 --num-devices 1 ${options[@]+"${options[@]}"} \
        ${tiny[@]+"${tiny[@]}"} "$@"
}
export -f train; export smoke manifests
# The programs of several families are compiled at the same time and kept in the cache of JAX. A family that fails here,
# for example for lack of memory, is compiled again when it is measured.
# shellcheck disable=SC2329  # exported
compile() { train "$1" "$batch" --warm-ups 1 --updates 1 > "$parts/compile_$1.txt" 2>&1 || true; }
export -f compile; export batch=600
[ -n "$smoke" ] && batch=32
if [ -z "$smoke" ]; then
    run compile 150 env XLA_CLIENT_MEM_FRACTION=0.22 \
        bash -c 'printf "%s\n" "$@" | xargs -P 4 -I{} bash -c "compile {}"' _ "${families[@]}" || true
fi
sizes=(--warm-ups 5 --updates 20); [ -n "$smoke" ] && sizes=(--warm-ups 1 --updates 2)
for family in "${families[@]}"; do
    more=(); [ "$family" = "${families[0]}" ] && more=(--trace "$parts/trace")
    run "train_$family" 90 bash -c 'train "$@"' _ "$family" "$batch" "${sizes[@]}" ${more[@]+"${more[@]}"} \
        --json "$parts/train_$family.json" || code=1
done
# A copy with a fixed path, for machines from which only single files can be fetched.
find "$parts/trace" -name 'perfetto_trace.json.gz' -exec cp {} "$out/perfetto_trace.json.gz" \; 2>/dev/null || true

file=none
if compgen -G "$parts/*.json" > /dev/null; then
    file=$("$python" -m benchmarks.device_results collect "$parts" --out "$out") || code=1
fi
echo "gpu_check: done in $((SECONDS - started)) s, exit code $code; figures: $file"
[ ! -f "$parts/omitted.txt" ] || sed 's/^/gpu_check: omitted or failed: /' "$parts/omitted.txt"
exit $code
