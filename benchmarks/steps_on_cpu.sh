#!/usr/bin/env bash
# Measures training steps beside the originals in PyTorch (4 × 8 s, float32) and writes benchmarks/results/model_*_cpu.json.
# Needs scripts/setup_reference.sh --peers and an idle machine; takes about 15 minutes on two cores. Models run without
# LayerDrop: the two systems draw different layers, and a step takes up to a quarter less time with the layers that it skips.
#   benchmarks/steps_on_cpu.sh [NAME …]   names of the files without model_ and _cpu.json (default: all)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export JAX_PLATFORMS=cpu

measure() {  # name, config, options
    local name=$1 config=$2
    shift 2
    known+=("$name")
    [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]] && return
    num_measured=$((num_measured + 1))
    .venv/bin/python -m benchmarks.model --config "$config" --training.precision f32 "$@" \
        --peer --json "benchmarks/results/model_${name}_cpu.json"
}

wanted=("$@") known=() num_measured=0
measure quartznet_10x5 configs/quartznet_librispeech.py --model.encoder.copies 2
measure zipformer_s configs/zipformer.py --model.encoder.dims 192 256 256 256 256 256 --model.encoder.num-layers 2 2 2 2 2 2 \
    --model.encoder.feedforward-dims 512 768 768 768 768 768 --model.encoder.unmasked-dims 192 192 192 192 192 192
measure fastconformer_6x512 configs/fastconformer_librispeech.py --model.encoder.num-layers 6
measure squeezeformer_s configs/squeezeformer_librispeech.py --model.encoder.dim 196 --model.encoder.num-layers 18
measure w2v_bert_small configs/w2v_bert_finetune.py --model.encoder.dim 512 --model.encoder.num-layers 12 \
    --model.encoder.num-heads 8 --model.encoder.feedforward-dim 2048 --model.encoder.remat elementwise \
    --model.encoder.layer-drop 0
measure wav2vec2_base_pretraining configs/wav2vec2_pretrain.py --model.sub-batches 1 --model.encoder.layer-drop 0 \
    --model.encoder.hourglass.before 0 --model.encoder.hourglass.middle 0 --model.encoder.hourglass.after 0 --repeats 3
measure wav2vec2_hourglass_pretraining configs/wav2vec2_pretrain.py --model.sub-batches 1 --model.encoder.layer-drop 0 --repeats 3
measure wav2vec2_base_ctc benchmarks/wav2vec2_base_ctc.py --vocabulary 32 --model.encoder.layer-drop 0 --repeats 3
if [ ${#wanted[@]} -gt 0 ] && [ $num_measured != ${#wanted[@]} ]; then
    echo "steps_on_cpu.sh ${wanted[*]}: $num_measured of ${#wanted[@]} names are known; expected names of ${known[*]}" >&2
    exit 2
fi
