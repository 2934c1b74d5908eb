"""Flags and environment variables in the documents of the four systems that this trainer replaces, with a value each.

`test_lists_of_names` compares them with the documents if they are there.
"""

from typing import NamedTuple


class Document(NamedTuple):
    """Names in the document of a system, with values that a user may give them."""

    file: str
    """Beginning of the document's file name."""
    system: str
    program: str
    """Command line before the names."""
    names: dict[str, str]
    """Values by name; an empty value is a flag without one."""


def _read(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in text.strip().splitlines())}


CAIMAN = _read("""
--batch_split_factor 2
--grad_accumulation_batches 4
--sampling_mode 2D-bucketing-fixed
PER_GPU_BATCH_SIZE 64
PER_GPU_JOINT_BATCH_SIZE 32
""")
QUARTZNET = _read("""
--amp
--help
ACC_BATCH_SIZE 144
AMP true
BATCH_SIZE 32
BATCH_SIZE_SEQ 1 2 4
CHECKPOINT quartznet.pt
CPU true
CUDNN_BENCHMARK false
DALI_DEVICE cpu
DATASET test-other
DATA_DIR /data/LibriSpeech
EMA 0.99
EPOCHS 20
EPOCHS_THIS_JOB 2
EVAL_FREQUENCY 300
GPU_BATCH_SIZE 48
GRAD_ACCUMULATION 3
GRAD_ACCUMULATION_STEPS 3
GRAD_ACC_SEQ 4 2
HOLD_EPOCHS 10
LEARNING_RATE 0.02
LOGITS_FILE logits.npy
LOG_FILE log.json
LR_EXP_GAMMA 0.99
LR_POLICY legacy
MAX_DURATION 12.5
MAX_DURATION_SEQ 2 7
MIN_LEARNING_RATE 1e-6
MODEL_CONFIG configs/mine.yaml
NUM_GPUS 4
NUM_GPUS_SEQ 1 4
NUM_STEPS 100
NUM_WARMUP_STEPS 5
OUTPUT_DIR /results/mine
PAD_TO_MAX_DURATION true
PREDICTION_FILE predictions.txt
PREDICTION_FREQUENCY 300
RESUME true
SAVE_FREQUENCY 5
SEED 3
TRAIN_MANIFESTS a.json b.json
VAL_MANIFESTS c.json
WARMUP_EPOCHS 1
""")
WAV2VEC2 = _read("""
--bf16
--fp16
--help
--max_tokens 1000000
BATCH_SIZE 4
BF16 true
DATASET_DIR /data/LibriSpeech
FINETUNED_MODEL finetuned.pt
FP16 true
FREEZE_FINETUNE_UPDATES 500
HOURGLASS_CONFIG [2,(4,2),2]
LEARNING_RATE 0.0003
MAX_TOKENS 1000000
MAX_UPDATE 1000
NUM_CONCAT_BATCHES 4
NUM_EPOCHS 5
NUM_GPUS 4
NUM_REPEATS 10
NUM_WARMUP_EPOCHS 2
NUM_WARMUP_REPEATS 2
NUM_WARUP_EPOCHS 2
OUTPUT_DIR results/mine
PRETRAINED_MODEL pretrained.pt
SAVE_FREQUENCY 3
SEED 7
TRAIN_SUBSET train-clean-100
UPDATE_FREQ 2
UPDATE_FREQUENCY 2
VALID_SUBSET dev-clean,dev-other
""")
RUST = _read("""
--adaptive-batch-budget 40000
--adaptive-batch-max-samples 2
--adaptive-batch-unit padded-duration-ms
--architecture zipformer
--backend cuda
--batch 8
--batch-size 4
--bin train
--blank-id 0
--byte-fallback
--channels 512
--character-coverage 0.9995
--d-model 128
--dataset-index-dir index
--decay-exponent 0.5
--device-index 1
--device-indices 0,1
--dry-run
--ema-decay 0.999
--ema-start-step 100
--epochs 3
--features burn-cuda-backend
--gradient-accumulation-steps 2
--gradient-clip-norm 5.0
--gradient-clip-value 1.0
--heads 8
--hf-upload-checkpoint-format burn-bin
--hf-upload-checkpoints
--hf-upload-private
--hf-upload-repo-id me/model
--hf-upload-revision main
--hold-epochs 5
--init-from weights.safetensors
--input data
--input-dim 80
--input-sentence-size 1000
--jobs 8
--keep-corpus
--learning-rate 0.001
--log-every 1
--lr-decay-exponent 0.5
--lr-decay-steps 2000
--lr-hold-epochs 5
--lr-hold-steps 100
--lr-min 1e-6
--lr-warmup-epochs 2
--lr-warmup-steps 100
--manifest-dir manifests
--max-audio-duration-sec 20
--max-samples 100
--max-train-samples 100
--max-val-samples 10
--mixed-precision
--model-prefix mine
--model-type bpe
--num-heads 4
--num-layers 8
--output features.parquet
--output-dir runs/mine
--paraformer
--paraformer-alignment-mode uniform
--paraformer-enhanced
--precision bf16
--release
--resume-from runs/mine/checkpoint_latest
--sentencepiece-command spm_train
--seq-len 512
--shuffle-input-sentence
--sort-buffer-size 1024
--sort-by-length-desc
--spec-freq-mask-max-bins 12
--spec-freq-masks 2
--spec-time-mask-max-frames 40
--spec-time-masks 2
--tokenizer tokenizer.model
--train-extremely-large-corpus
--train-manifest train.jsonl
--tui
--user-defined-symbols <a>,<b>
--val-beam-width 8
--val-lm-no-bos
--val-lm-no-eos
--val-lm-path lm.arpa
--val-lm-weight 0.4
--val-lm-word-bonus 0.1
--val-log-samples 5
--val-manifest val.jsonl
--val-n-best 4
--val-set val.jsonl
--valid-manifest val.jsonl
--validate-every-steps 500
--validation-manifest val.jsonl
--validation-set val.jsonl
--variant s
--vocab-size 5001
--w2v-activation-checkpointing
--w2v-bert
--w2v-hf-load-weights
--w2v-hf-model-dir w2v-bert-2.0
--warmup-epochs 2
--waveform-gain-max-db 3
--waveform-gain-min-db -3
--waveform-noise-std 0.003
--weight-decay 0.001
--zipformer
COLAB_BASE_IMAGE ubuntu
COLAB_GLIBC_IMAGE_TAG tag
CUDA_VISIBLE_DEVICES 2,3
RUST_LOG info
""")
DOCUMENTS = (
    Document("000", "caiman", "python caiman_asr_train/train.py", CAIMAN),
    Document("001", "quartznet", "bash scripts/train.sh", QUARTZNET),
    Document("002", "wav2vec2", "bash scripts/pretrain_base.sh", WAV2VEC2),
    Document("003", "rust", "cargo run --bin train -- --train-manifest train.jsonl --vocab-size 5001", RUST),
)
