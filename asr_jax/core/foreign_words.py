"""Words of other systems for settings and options of this one: the table behind every suggestion for a foreign flag.

The systems are NeMo, Hugging Face, icefall, fairseq, SpeechBrain, ESPnet, WeNet, CAIMAN-ASR, NVIDIA's
DeepLearningExamples and the Rust trainer. A flag that is one of the words is an error with a suggestion; it is never
applied, because units and meanings differ.
"""

import functools
import re
from collections.abc import Collection
from fnmatch import fnmatch
from typing import NamedTuple

WORDS = {
    "--config": "config-name config-path config-file asr-config model-config yaml hparams; a Python file of settings, "
    "such as configs/read_speech.py",
    "--optim.schedule.peak-lr": "lr learning-rate base-lr max-lr lr-adam lr-model init-lr initial-lr lr-weights",
    "--optim.schedule.min-lr": "min-lr lr-min min-learning-rate eta-min end-learning-rate",
    "--optim.schedule.warmup-epochs": "warmup-epochs lr-warmup-epochs warmup-epoch",
    "--optim.schedule.warmup-updates": "warmup warmup-steps warm-step warmup-updates warmup-ratio num-warmup-steps "
    "lr-warmup-steps n-warmup-steps warmup-batches; a number of optimizer steps",
    "--optim.schedule.warmup-*": "warmup warmup-steps warmup-updates warmup-ratio num-warmup-steps lr-warmup-steps "
    "warmup-epochs lr-warmup-epochs phase-ratio",
    "--optim.schedule.hold-epochs": "hold-epochs lr-hold-epochs",
    "--optim.schedule.hold-updates": "hold-steps lr-hold-steps hold-updates",
    "--optim.schedule.hold-*": "hold-steps lr-hold-steps hold-updates hold-epochs lr-hold-epochs",
    "--optim.schedule.decay": "lr-scheduler-type lr-policy lr-scheduler scheduler sched sched.name lr-schedule",
    "--optim.schedule.decay-updates": "decay-steps lr-decay-steps total-num-update max-decay-steps lr-batches",
    "--optim.schedule.decay-epochs": "lr-epochs",
    "--optim.schedule.half-life-updates": "half-life-steps",
    "--optim.schedule.gamma": "lr-gamma lr-exp-gamma",
    "--optim.schedule.exponent": "decay-exponent lr-decay-exponent",
    "--optim.schedule.final-share": "final-lr-scale",
    "--optim.weight-decay": "weight-decay wd l2",
    "--optim.b1": "adam-beta1 beta1 betas adam-betas",
    "--optim.b2": "adam-beta2 beta2",
    "--optim.eps": "adam-eps adam-epsilon opt-eps",
    "--optim.clip-at": "clip-norm clip-grad-norm grad-clip max-grad-norm gradient-clip-val gradient-clip-norm "
    "gradient-clip-value clip clip-grad gradient-clipping",
    "--optim.layer-decay": "layerwise-lr-decay layer-lr-decay llrd",
    "--optim.lr-factors": "lr-encoder lr-wav2vec enc-lr-factor joint-net-lr-factor lr-multiplier encoder-lr",
    "--optim.freeze-updates": "freeze-finetune-updates freeze-steps freeze-encoder freeze-feature-encoder freeze-param "
    "freeze-modules freeze-wav2vec freeze memory oom; patterns of parameters with the number of optimizer steps during "
    "which they are frozen",
    "--optim.clipping-scale": "clipping-scale",
    "--data.batching.budget": "batch-size bs b global-batch-size micro-batch-size train-batch-size max-duration "
    "max-tokens batch-bins batch-frames max-batch-length max-batch-len max-frames-in-batch batch-type dynamic-batching "
    "num-concat-batches max-inputs-per-batch adaptive-batch-budget batch-duration memory oom; seconds of audio of a "
    "batch, over all devices",
    "--data.batching.max-rows": "max-sentences max-batch-size max-batch-ex adaptive-batch-max-samples; utterances of a "
    "batch, over all devices",
    "--data.batching.unit": "adaptive-batch-unit vram-budget",
    "--data.batching.row-multiple": "required-batch-size-multiple pad-to-multiple-of",
    "--data.batching.edges": "sampling-mode sampler; each sampling mode is several settings (documentation: data)",
    "--data.batching.rows": "per-device-train-batch-size per-gpu-batch-size gpu-batch-size per-gpu-batch "
    "bucket-batch-size bucket-batch-sizes; utterances of a batch, on each device with --data.batching.devices 0",
    "--data.batching.edges-labels": "bucket-boundaries-2d bucket-edges duration-token-buckets",
    "--data.batching.random-epochs": "randomize-first-n-epochs",
    "--data.batching.pessimistic-first": "pessimistic-first-batch",
    "--training.pre-allocate": "pre-allocate-range pre-allocate",
    "--data.batching.num-buckets": "num-buckets bucketing bucketing-batch-size bucketing-strategy bucketing-sampler "
    "num-bucket group-by-length",
    "--data.batching.edges-s": "bucket-duration-bins fold-length bucket-boundaries",
    "--data.batching.sort-window": "sort-by-length-desc sorting shuffle sort-order sort-buffer-size sort-size",
    "--data.tokenizer.sampling": "subword-sampling tokenizer.sampling subword-regularization",
    "--training.pass-states.lengths": "rsp-seq-len-freq rsp",
    "--training.pass-states.after": "rsp-delay",
    "--training.accumulate": "accumulate-grad-batches gradient-accumulation-steps grad-accumulation-batches "
    "grad-accumulation-factor gradient-accumulation grad-accumulation accum-grad update-freq update-frequency memory "
    "oom",
    "--model.heads.*.split": "batch-split-factor",
    "--training.split": "batch-split-factor",
    "--training.num-updates": "steps max-steps max-update max-updates training-steps num-steps max-iters "
    "num-train-steps total-steps; optimizer steps",
    "--training.num-epochs": "num-epochs max-epochs max-epoch num-train-epochs number-of-epochs n-epochs epoch "
    "number-of-ctc-epochs",
    "--training.limits.epochs-this-job": "epochs-this-job",
    "--training.precision": "fp16 bf16 use-fp16 use-bf16 amp no-amp use-amp tf32 precision mixed-precision dtype "
    "train-dtype auto-mix-prec memory-efficient-fp16 torch-dtype half eval-precision memory oom; f32, tf32, bf16 or "
    "f16",
    "--training.loss-scale.initial": "fp16-init-scale init-scale",
    "--training.loss-scale.floor": "min-loss-scale grad-scaler-lower-bound-log2",
    "--training.ema.decay": "ema ema-decay use-ema ema.enable; 0: no average",
    "--training.ema.start": "ema-start-step ema-start",
    "--training.validation.every": "eval-steps val-check-interval val-frequency validate-interval-updates "
    "valid-interval validate-every-steps eval-frequency val-interval evaluation-strategy eval-strategy "
    "num-iters-per-epoch valid-interval-updates eval-every cv-interval; a number of optimizer steps",
    "--training.validation.each-epoch": "check-val-every-n-epoch validate-interval evaluation-strategy eval-strategy",
    "--training.validation.num-samples": "val-log-samples log-prediction",
    "--training.validation.sample-every": "prediction-frequency prediction-interval",
    "--training.saving.every-epochs": "save-every-n save-frequency save-every-n-epochs",
    "--training.saving.best-of": "metric-for-best-model best-checkpoint-metric monitor",
    "--training.saving.every-updates": "save-steps save-interval save-interval-updates checkpoint-interval "
    "save-strategy save-every every-n-train-steps ckpt-interval; updates between checkpoints; each validation also "
    "saves one",
    "--training.saving.every-minutes": "ckpt-interval-minutes",
    "--training.saving.keep-last": "save-total-limit keep-last-k keep-last-epochs keep-interval-updates "
    "max-checkpoints keep-nbest-models average-period avg num-to-keep",
    "--training.saving.keep-best": "save-top-k keep-best-checkpoints keep-nbest-models avg-checkpoints average-num "
    "val-best load-best-model-at-end",
    "--training.saving.milestone-epochs": "keep-milestones",
    "--training.log-every": "logging-steps log-interval log-frequency log-every log-every-n-steps report-interval "
    "print-frequency train-logger-interval",
    "--training.limits.patience": "early-stopping-patience early-stopping patience early-stop",
    "--upload.to": "push-to-hub hub-model-id hf-upload-checkpoints hf-upload-repo-id",
    "--upload.revision": "hf-upload-revision hub-revision",
    "--upload.private": "hf-upload-private hub-private-repo",
    "--upload.format": "hf-upload-checkpoint-format",
    "--training.limits.max-hours": "max-time max-train-time stop-time-hours time-limit",
    "--training.validation.loss": "skip-val-loss",
    "--training.profile": "profiler profile nsys-profile",
    "--data.train": "train-manifest train-manifests train-data train-file train-csv train-set train-subset train-dir "
    "train-path train-json train-data-path-and-name-and-type dataset dataset-name dataset-dir data-dir data-folder "
    "data-path task.data manifest manifest-dir manifest-filepath train-tar-files train-split-name "
    "train-ds.manifest-filepath train-ds.tarred-audio-filepaths dumpdir full-libri mini-libri dataset-index-dir",
    "--data.validation": "val-manifest val-manifests valid-manifest validation-manifest dev-manifest valid-data "
    "valid-csv valid-set val-set validation-set dev-set validation-file valid-file eval-file dev-file val-data cv-data "
    "valid-subset eval-split-name valid-data-path-and-name-and-type val-tar-files val-audio-dir "
    "validation-ds.manifest-filepath test-ds.manifest-filepath eval-dataset",
    "--data.validation-share": "val-split validation-split valid-size",
    "--data.mixing.weights": "train-manifest-ratios relative-train-manifest-ratios sampling-weights",
    "--data.mixing.exponent": "upsampling-temperature sampling-alpha",
    "--data.workers": "num-workers n-workers nj dataloader-num-workers preprocessing-num-workers workers "
    "loader-workers num-jobs jobs; 0: threads of the training process read the audio",
    "--data.cache": "cache-dir cache-path",
    "--data.max-train-utterances": "max-train-samples limit-train-batches n-utterances-only max-samples",
    "--data.max-validation-utterances": "max-val-samples max-eval-samples limit-val-batches",
    "--data.crop-s": "max-sample-size",
    "--data.filters.max-duration-s": "max-audio-length max-audio-len max-duration-in-seconds memory oom "
    "max-audio-duration-sec max-wav-duration max-length avoid-if-longer-than train-ds.max-duration "
    "skip-invalid-size-inputs-valid-test",
    "--data.filters.min-duration-s": "min-sample-size min-duration min-duration-in-seconds min-wav-duration min-length "
    "avoid-if-shorter-than",
    "--data.filters.max-chars": "max-transcript-len max-text-length",
    "--data.speeds": "speed-perturb perturb-speed speed-perturbation speed-perturb-factors speeds speed; such as 0.9 "
    "1.0 1.1",
    "--data.trim-db": "trim-silence trim-silence-threshold",
    "--data.tokenizer.kind": "token-type tokenizer-type tokenizer.type",
    "--data.tokenizer.path": "tokenizer tokenizer-name tokenizer-path tokenizer.dir bpe-model bpemodel spm-model "
    "token-list symbol-table lang-dir dict dictionary vocab vocab-file sentencepiece-model labels",
    "--data.tokenizer.vocab-size": "vocab-size nbpe output-neurons bpe-size",
    "--data.tokenizer.normaliser": "normalizer normalize-transcripts text-normalizer cleaner chars-to-ignore "
    "chars-to-remove standardize-wer lowercase",
    "--data.tokenizer.alphabet": "labels alphabet charset",
    "--data.tokenizer.blank-id": "blank blank-index blank-id",
    "--run-dir": "output-dir output-folder exp-dir expdir exp save-dir save-folder log-dir out-dir model-dir "
    "results-dir work-dir exp-manager.exp-dir exp-manager.name tensorboard-dir tensorboard-logdir default-root-dir "
    "resume resume-from resume-from-checkpoint resume-if-exists restore-file start-epoch start-batch continue-from; "
    "folder of the run; training in the folder of an existing run continues it; RUN/checkpoints/N begins a new run "
    "from that checkpoint",
    "--fresh": "overwrite-output-dir reset-optimizer reset-dataloader",
    "--init.path": "ckpt ckpt-path checkpoint load-from pretrained pretrained-model pretrained-path model-name-or-path "
    "pretrained-model-name-or-path init-from-pretrained-model init-from-nemo-model init-from-ptl-ckpt "
    "finetune-from-model finetune-ckpt fine-tune finetune do-finetune init-param enc-init w2v-path wav2vec2-hub "
    "w2v-hf-model-dir w2v-hf-load-weights restore-path checkpoint-path; short form --init-from; a Hugging Face folder "
    "with config.json alone, or this file, gives settings without weights",
    "--init.strict": "ignore-mismatched-sizes ignore-init-mismatch allow-partial-checkpoint",
    "--init.new": "init-modules",
    "--lora.rank": "use-lora lora-rank lora-r",
    "--lora.alpha": "lora-alpha",
    "--lora.kernels": "lora-target-modules target-modules lora-list",
    "--model.encoder.remat": "memory oom gradient-checkpointing activation-checkpointing checkpoint-activations "
    "w2v-activation-checkpointing; none, elementwise, products or layers",
    "--model.encoder.dim": "d-model encoder-dim encoder-embed-dim hidden-size output-size adim",
    "--model.encoder.dims": "d-model encoder-dim",
    "--model.encoder.num-layers": "n-layers num-layers encoder-layers num-encoder-layers num-hidden-layers elayers "
    "num-blocks",
    "--model.encoder.num-heads": "n-heads num-heads encoder-attention-heads num-attention-heads attention-heads aheads",
    "--model.encoder.feedforward-dim": "feedforward-dim encoder-ffn-embed-dim intermediate-size linear-units d-ffn",
    "--model.encoder.feedforward-dims": "feedforward-dim",
    "--model.encoder.kernel-size": "conv-kernel-size cnn-module-kernel conv-depthwise-kernel-size",
    "--model.encoder.kernel-sizes": "cnn-module-kernel",
    "--model.encoder.subsampling-factor": "subsampling-factor",
    "--model.encoder.downsampling": "downsampling-factor",
    "--model.encoder.contexts.*.chunk-frames": "chunk-size",
    "--model.encoder.contexts.*.left-frames": "left-context-frames num-left-chunks",
    "--model.encoder.dropout": "dropout hidden-dropout dropout-rate",
    "--model.encoder.dropout-end": "dropout dropout-rate",
    "--model.encoder.attention-dropout": "attention-dropout dropout-att attention-dropout-rate",
    "--model.encoder.layer-drop": "layerdrop encoder-layerdrop layer-drop",
    "--model.encoder.time-mask.probability": "mask-prob mask-time-prob",
    "--model.encoder.time-mask.length": "mask-length mask-time-length",
    "--model.encoder.channel-mask.probability": "mask-channel-prob mask-feature-prob",
    "--model.encoder.channel-mask.length": "mask-channel-length mask-feature-length",
    "--model.encoder.extractor-gradient": "feature-grad-mult",
    "--model.encoder.hourglass.middle": "hourglass-transformer hourglass-config",
    "--model.encoder.hourglass.resample": "hourglass-resample",
    "--model.encoder.rotary": "rotary-embeddings pos-enc-type",
    "--model.encoder.fused-attention": "mha flash-attention attn-implementation",
    "--model.encoder.num-adapters": "add-adapter num-adapter-layers w2v-num-adapter-layers",
    "--model.encoder.adapter-stride": "w2v-adapter-stride",
    "--model.encoder.adapter-kernel-size": "w2v-adapter-kernel-size",
    "--model.heads.*.consistency": "cr-loss-scale use-cr-ctc",
    "--model.heads.*.scale": "ctc-weight ctc-loss-scale",
    "--model.heads.*.dropout": "final-dropout",
    "--model.heads.*.weight-by": "ctc-loss-reduction ctc-reduction sentence-avg ctc-zero-infinity",
    "--model.heads.*.num-negatives": "num-negatives",
    "--model.augment.*.num-freq-masks": "freq-masks num-freq-mask spec-freq-masks num-f-mask spec-augment specaug "
    "enable-spec-aug spec-aug apply-spec-augment",
    "--model.augment.*.max-freq-bins": "freq-width spec-freq-mask-max-bins max-f",
    "--model.augment.*.num-time-masks": "time-masks num-time-mask spec-time-masks num-t-mask",
    "--model.augment.*.max-time-frames": "time-width spec-time-mask-max-frames max-t",
    "--model.heads.*.alignment": "paraformer-alignment-mode; of Paraformer-v2 heads: viterbi, uniform or greedy",
    "--model.heads.*.smoothing": "label-smoothing label-smoothing-factor lsm-weight lsm",
    "--model.heads.*.sampling": "sampling-ratio",
    "--model.heads.*.quantity-scale": "predictor-weight",
    "--model.front-end.num-mels": "n-mels num-mel-bins features n-filt feat-dim input-dim preprocessor.features n-mel",
    "--model.front-end.rate-hz": "sample-rate sampling-rate resample-rate fs",
    "--model.front-end.dither": "dither",
    "--model.front-end.window-ms": "window-size window-length win-length frame-length",
    "--model.front-end.hop-ms": "window-stride hop-length frame-shift",
    "--decoding.kind": "decoding-method decoder-type ctc-decoding.strategy decoding.strategy mode modes method",
    "--decoding.search.beam-width": "beam beam-size beam-width num-beams val-beam-width test-beam-size valid-beam-size",
    "--decoding.search.num-best": "nbest n-best val-n-best num-paths",
    "--decoding.fusion.kenlm": "lm lm-path lm-model lm-file kenlm kenlm-path kenlm-model-path kenlm-model "
    "override-ngram-path skip-ngram lm-tag lm-exp val-lm-path",
    "--decoding.fusion.lm-weight": "lm-weight lm-alpha beam-alpha ngram-lm-scale lm-scale val-lm-weight",
    "--decoding.fusion.word-bonus": "word-score beam-beta word-insertion-penalty penalty ins-penalty val-lm-word-bonus",
    "--decoding.reranking.kenlm": "val-lm-path",
    "--decoding.reranking.lm-weight": "val-lm-weight",
    "--decoding.reranking.word-bonus": "val-lm-word-bonus",
    "--decoding.reranking.bos": "val-lm-no-bos",
    "--decoding.reranking.eos": "val-lm-no-eos",
    "--decoding.fusion.hot-words": "hotwords hot-word keywords key-phrases key-phrases-file context-list boosting "
    "keyword-boosting",
    "--decoding.fusion.lexicon": "lexicon",
    "--data": "manifest test-manifest test-manifests val-manifest val-manifests dataset-manifest dataset-manifests "
    "manifest-filepath test-data test-file test-csv test-set test-sets test-ds.manifest-filepath eval-file eval-data "
    "validation-file dataset dataset-name dataset-dir data-dir gen-subset test-subset data-path "
    "data-path-and-name-and-type input-manifest",
    "INPUT …": "input inputs audio audio-file audio-files audio-dir audio-path wav wav-file wav-scp file files "
    "transcribe-wav transcribe-filelist filelist dataset-manifest manifest data data-dir path",
    "AUDIO": "audio audio-file audio-path wav wav-file input",
    "RUN …": "model model-path model-dir model-file pretrained-name pretrained-model model-name-or-path load-dir "
    "exp-dir run run-dir asr-model-file runs ckpt checkpoint-path checkpoint-dir path exp nemo-model",
    "RUN": "model model-path model-dir model-file pretrained-name pretrained-model model-name-or-path load-dir exp-dir "
    "run run-dir asr-model-file ckpt checkpoint-path checkpoint-dir exp nemo-model",
    "--predictions": "save-predictions output-filename output results-path results-dir output-dir pred-out pred-file "
    "hyp-file",
    "--out": "output output-dir output-file output-filename out-dir outdir result-dir results-dir dst save-dir",
    "--log-probs": "save-logits logits save-log-probs probs-cache-file logits-save-to",
    "--precision": "fp16 bf16 amp no-amp use-amp use-fp16 half dtype torch-dtype compute-dtype compute-type "
    "inference-precision eval-precision",
    "--device": "cpu cuda gpu accelerator use-gpu no-cuda device-type use-cpu; cpu, gpu or tpu",
    "--devices": "gpus num-gpus ngpu gpu-id device-id device-index; numbers of devices, such as 0,2; by default, all "
    "are used",
    "--checkpoint": "epoch iter step ckpt-step update checkpoint-update",
    "--live": "use-averaged-model ema no-ema use-ema average-model ema-model",
    "--head": "head-name decoder decoder-name",
    "--format": "output-format output-formats out-format return-timestamps timestamps compute-timestamps "
    "word-timestamps",
    "--window-seconds": "chunk-length-s chunk-length chunk-len-in-secs chunk-size segment-length max-window "
    "total-buffer-in-secs buffer-len-in-secs",
    "--overlap-seconds": "stride-length-s overlap stride overlap-in-secs",
    "--batch-size": "bs b batch-size-seq per-device-eval-batch-size eval-batch-size num-concat-batches",
    "--batch-seconds": "max-tokens batch-bins batch-duration memory oom",
    "--max-duration": "max-audio-duration-sec max-length",
    "--normaliser": "normalizer text-normalizer standardize-wer normalize cleaner",
    "--by": "group-by breakdown breakdown-wer",
    "--worst": "show-errors num-errors top-errors",
    "--text": "transcript transcripts text-file txt",
    "a launcher or variables start several processes (documentation: several-machines)": "world-size "
    "distributed-world-size num-nodes nnodes nproc-per-node local-rank master-port master-addr rank node-rank "
    "dist-backend ddp-backend ddp.dist-backend strategy deepspeed fsdp distributed-launch distributed-backend "
    "multiprocessing-distributed distributed-port train-engine ddp-find-unused-parameters",
    "the config file chooses the class of the optimizer": "optimizer optim optim.name optim-conf optimizer-name",
    "the config file chooses the model (documentation: models)": "model arch architecture variant encoder "
    "model-type model-name encoder-type encoder-conf model-conf use-transducer use-ctc criterion task",
    "ENHANCED=1 with configs/paraformer_rust.py trains the enhanced Paraformer-v2 (heads.paraformer.enhanced)": ""
    "paraformer-enhanced",
    "the config file chooses the augmentations (model.augment)": "enable-musan musan noise augmentation reverb "
    "noise-snr musan-dir waveform-noise-std waveform-gain-min-db waveform-gain-max-db specaug-conf noise-dir rir-dir "
    "noise-scp rir-scp augment",
    "tensorboard --logdir RUN shows all figures; asr_jax.observe.forward sends them to wandb or mlflow": ""
    "tensorboard wandb report-to use-wandb create-wandb-logger create-tensorboard-logger use-tensorboard tui "
    "wandb-project logger",
    "every batch shape is compiled before the first update": "torch-compile compile jit jit-compile inf-check "
    "cudnn-benchmark benchmark",
    "python -m asr_jax.evaluate and transcribe use a trained run": "do-eval do-predict test-only eval-only test-sets",
    "training is what this command does": "do-train train mode",
    "--upload uses the token of hf auth login, or HF_TOKEN": "hub-token token use-auth-token",
    "settings are flags of their own: --field.name VALUE": "override-config override overrides",
    "the format of manifests and audio is recognised (documentation: data)": "use-lhotse is-tarred "
    "read-from-tar use-hugging-face val-from-dir text-column-name audio-column-name data-type raw-data input-strategy "
    "on-the-fly-feats dataset-config-name",
    "there is none; the CTC loss has no label smoothing": "ctc-label-smoothing",
    "there are no stages: each is a command of its own, and python -m asr_jax lists the commands": ""
    "stage stop-stage skip-prep skip-stages",
    "audio is read by threads of the command": "num-workers nj workers dataloader-num-workers jobs",
    "texts are in the language of the training data": "language lang",
    "a run contains its tokenizer and settings; asr_jax.import takes those that a published file lacks": ""
    "tokenizer bpe-model bpemodel lang-dir token-list symbol-table dict config model-config config-name config-path "
    "labels asr-train-config",
    "audio of any length is transcribed": "vad vad-model",
    "words of transcribe --format json have a confidence and times": "confidence return-confidence preserve-alignments",
}
"""Words for each flag, without leading dashes, and after a semicolon a note on what differs. `*` is any name, and a
name without dashes is a positional argument. If a word stands below several flags, the first that a command has is
suggested. Words without a flag of ours stand below the advice for them."""


class Row(NamedTuple):
    """A row of the table."""

    flag: str
    """Flag or positional argument of this system; empty if there is none."""
    words: tuple[str, ...]
    note: str
    """Meaning or unit, if it differs from other systems; without a flag, the advice."""


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns the rows of the table, in its order."""
    found = []
    for key, text in WORDS.items():
        words, _, note = text.partition("; ")
        is_flag = re.fullmatch(r"--[\w.*-]+|[A-Z]+( …)?", key)
        found.append(Row(key if is_flag else "", tuple(words.split()), note if is_flag else key))
    return tuple(found)


def meant_by(written: str, known: Collection[str]) -> str:
    """Returns the suggestion for a flag with a word of another system; empty if the word is not in the table.

    Args:
        written: The flag, in any spelling: `--batch_size`, `+trainer.max_epochs`.
        known: Flags and positional arguments of the command.
    """
    about = rows_on(written)
    for row in about:
        if row.flag in known and not row.flag.startswith("--"):
            return f": {row.flag.removesuffix(' …')} is given without a flag"
        if found := matching(row.flag, known):
            return f"; did you mean {' or '.join(found)}{f' ({row.note})' * bool(row.note)}?"
    if advice := [row.note for row in about if not row.flag]:
        return f": {advice[0]}"
    named = [f"{row.flag} ({row.note})" if row.note else row.flag for row in about]
    return f": it is {' or '.join(named)} of other commands or configs" if named else ""


def rows_on(written: str) -> list[Row]:
    """Returns the rows with the word of a flag, or with the word without its first groups, as in `model.optim.lr`."""
    word = plain_word(written)
    found = [row for row in rows() if word in row.words]
    return found if found or "." not in word else rows_on(word.partition(".")[2])


def matching(flag: str, known: Collection[str]) -> list[str]:
    """Returns the flags that the flag of a row stands for."""
    return [flag] if flag in known else sorted(each for each in known if fnmatch(each, flag))


def plain_word(written: str) -> str:
    """Returns a flag without leading `-`, `+` and `~` and without its value, in lower case and with dashes."""
    return re.sub(r"^[-+~]+", "", written).partition("=")[0].replace("_", "-").lower()
