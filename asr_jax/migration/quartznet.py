"""QuartzNet of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition/QuartzNet at commit 729963dd)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from asr_jax.audio.specaugment import Cutout, SpecAugment
from asr_jax.config import Experiment
from asr_jax.migration.changes import Change
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, To, one_of, times, truth, under
from asr_jax.optim.optimizers import EVERYTHING, LAMB, AdamW
from asr_jax.pretrained.quartznet import settings_of

AUDIO, FEATURES, ENCODER = "input_train.audio_dataset", "input_train.filterbank_features", "quartznet.encoder"
SPEC_AUGMENT = {
    "freq_masks": "num_freq_masks", "max_freq": "max_freq_bins", "time_masks": "num_time_masks",
    "max_time": "max_time_frames",
}  # fmt: skip
BLOCKS = "in_feats activation use_conv_masks blocks"
FRONT_END: Mapping[str, Row] = {
    "input_val.*": NotNeeded("validation uses the front-end of training without augmentation, and no filters"),
    f"{AUDIO}.sample_rate|{FEATURES}.sample_rate": "model.front_end.rate_hz",
    f"{AUDIO}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    f"{AUDIO}.min_duration": "data.filters.min_duration_s",
    f"{AUDIO}.speed_perturbation.min_rate {AUDIO}.speed_perturbation.max_rate": PART,
    f"{FEATURES}.window_size": To("model.front_end.window_ms", times(1000)),
    f"{FEATURES}.window_stride": To("model.front_end.hop_ms", times(1000)),
    f"{FEATURES}.window": Absent("the front-end has a Hann window", ("hann",)),
    f"{FEATURES}.n_filt": "model.front_end.num_mels",
    f"{FEATURES}.n_fft": "model.front_end.fft_length",
    f"{FEATURES}.dither": "model.front_end.dither",
}
"""Rows of the YAML files of NVIDIA's recipes, and of those that come from them."""
ROWS: Mapping[str, Row] = {
    "--epochs|EPOCHS": "training.num_epochs",
    "--warmup_epochs|WARMUP_EPOCHS": "optim.schedule.warmup_epochs",
    "--hold_epochs|HOLD_EPOCHS": "optim.schedule.hold_epochs",
    "--epochs_this_job|EPOCHS_THIS_JOB": "training.limits.epochs_this_job",
    "--cudnn_benchmark|CUDNN_BENCHMARK": NotNeeded("XLA chooses kernels when it compiles"),
    "--seed|SEED": "seed",
    "--amp|--fp16|AMP --pre_allocate_range|PRE_ALLOCATE NUM_GPUS --gpu_batch_size|GPU_BATCH_SIZE "
    "--optimizer|OPTIMIZER PAD_TO_MAX_DURATION": PART,
    "--grad_accumulation|--update-freq|GRAD_ACCUMULATION|GRAD_ACCUMULATION_STEPS": "training.accumulate",
    "--lr|LEARNING_RATE": "optim.schedule.peak_lr",
    "--min_lr|MIN_LEARNING_RATE": "optim.schedule.min_lr",
    "--lr_policy|LR_POLICY": To("optim.schedule.decay", one_of(exponential="exponential", legacy="polynomial")),
    "--lr_exp_gamma|LR_EXP_GAMMA": "optim.schedule.gamma",
    "--weight_decay": "optim.weight_decay",
    "--ema|EMA": "training.ema.decay",
    "--multi_tensor_ema|MULTI_TENSOR_EMA": NotNeeded("the average is part of the compiled update"),
    "--dali_device|DALI_DEVICE": NotNeeded("features are computed on the device that trains"),
    "--resume|RESUME": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--ckpt|CHECKPOINT": "init.path",
    "--save_frequency|SAVE_FREQUENCY": "training.saving.every_epochs",
    "--keep_milestones": Absent("training.saving.milestones are updates: multiply by the updates of an epoch (plan)"),
    "--save_best_from": NotNeeded("the best checkpoint is kept from the first validation on"),
    "--eval_frequency|EVAL_FREQUENCY": "training.validation.every",
    "--log_frequency": "training.log_every",
    "--prediction_frequency|PREDICTION_FREQUENCY": "training.validation.sample_every",
    "--model_config|MODEL_CONFIG": NotNeeded("the file is one of the sources"),
    "--train_manifests|TRAIN_MANIFESTS": "data.train",
    "--val_manifests|VAL_MANIFESTS": "data.validation",
    "--dataset_dir|DATA_DIR": "data.root",
    "--output_dir|OUTPUT_DIR": "run_dir",
    "--log_file|LOG_FILE": NotNeeded("RUN/events.jsonl has all figures"),
    "--benchmark_epochs_num|BENCHMARK_EPOCHS": Elsewhere("benchmark train --updates"),
    "--override_config": NotNeeded("it sets a key of the YAML file"),
    "MAX_DURATION": "data.filters.max_duration_s",
    # train_benchmark.sh
    "ACC_BATCH_SIZE": Elsewhere("benchmark train --batch"),
    "GRAD_ACC_SEQ": Elsewhere("benchmark train --accumulation"),
    "NUM_GPUS_SEQ": Elsewhere("benchmark train --num-devices"),
    # inference.sh, evaluation.sh and inference_benchmark.sh
    "DATASET|--val_manifest": Elsewhere("evaluate RUN --data"),
    "BATCH_SIZE|--batch_size": Elsewhere("evaluate RUN --batch-size"),
    "NUM_STEPS|--steps": Elsewhere("benchmark inference RUN --steps"),
    "NUM_WARMUP_STEPS|--warmup_steps": Elsewhere("benchmark inference RUN --warm-ups"),
    "BATCH_SIZE_SEQ": Elsewhere("benchmark inference RUN --batch-sizes"),
    "MAX_DURATION_SEQ": Elsewhere("benchmark inference RUN --seconds"),
    "CPU|--cpu": Elsewhere("evaluate RUN --device cpu"),
    "LOGITS_FILE|--save_logits|--logits_save_to": Elsewhere("evaluate RUN --log-probs"),
    "PREDICTION_FILE|--save_predictions|--save_prediction": Elsewhere("evaluate RUN --predictions"),
    "--transcribe_wav --transcribe_filelist": Elsewhere("transcribe RUN"),
    "--torchscript --torchscript_export": Absent("there is no TorchScript: export RUN --to onnx"),
    # the YAML file
    **FRONT_END,
    "name": To("name", lambda value: str(value).lower()),
    "labels": To("data.tokenizer.alphabet", "".join),
    f"{AUDIO}.normalize_transcripts": To(
        "data.tokenizer.normaliser", lambda value: "english_letters.v1" if truth(value) else "none"
    ),
    f"{AUDIO}.max_duration": "data.filters.max_duration_s",
    f"{AUDIO}.pad_to_max_duration": PART,
    f"{AUDIO}.ignore_offline_speed_perturbation": NotNeeded("each manifest entry is one utterance"),
    f"{AUDIO}.speed_perturbation.p": NotNeeded("DALI applies it to every utterance"),
    f"{AUDIO}.speed_perturbation.discrete": Absent("rates are drawn from the whole range; set data.speeds instead"),
    f"{FEATURES}.normalize": Absent("the front-end normalises each bin of an utterance", ("per_feature",)),
    f"{FEATURES}.frame_splicing|{ENCODER}.frame_splicing": Absent("NVIDIA's code has no other value either", (1,)),
    f"{FEATURES}.pad_align": NotNeeded("the shapes of the buckets are static"),
    f"{FEATURES}.max_duration {FEATURES}.pad_to_max_duration": NotNeeded("as in audio_dataset"),
    **{f"{FEATURES}.spec_augment.{name}": f"model.augment.SpecAugment.{field}" for name, field in SPEC_AUGMENT.items()},
    under(f"{FEATURES}.spec_augment", "min_freq min_time"): Absent("widths begin at 0"),
    under(f"{FEATURES}.cutout_augment", "masks min_freq max_freq min_time max_time"): PART,
    under(ENCODER, BLOCKS): PART,
    "quartznet.encoder.init quartznet.decoder.init": NotNeeded("convolutions have xavier_uniform"),
    "quartznet.decoder.in_feats": NotNeeded("it is the width of the last block"),
}  # fmt: skip
OF_TRAIN_PY: Mapping[str, Any] = {
    "--epochs": 400, "--warmup_epochs": 0, "--hold_epochs": 0, "--amp": False, "--gpu_batch_size": 32, "--lr": 1e-3,
    "--min_lr": 1e-5, "--lr_policy": "exponential", "--lr_exp_gamma": 0.99, "--weight_decay": 1e-3,
    "--grad_accumulation": 1, "--optimizer": "novograd", "--ema": 0.0, "--save_frequency": 10, "--eval_frequency": 200,
    "--log_frequency": 25, "--prediction_frequency": 100, "NUM_GPUS": 1,
}  # fmt: skip
OF_TRAIN_SH: Mapping[str, Any] = {
    "--epochs": 260, "--warmup_epochs": 2, "--hold_epochs": 140, "--amp": False, "NUM_GPUS": 8, "--gpu_batch_size": 72,
    "--lr": 0.01, "--min_lr": 1e-5, "--lr_policy": "exponential", "--lr_exp_gamma": 0.981, "--weight_decay": 1e-3,
    "--grad_accumulation": 2, "--optimizer": "fused_novograd", "--ema": 0.999, "--save_frequency": 10,
    "--eval_frequency": 241, "--log_frequency": 1, "--prediction_frequency": 241,
}  # fmt: skip
OF_INFERENCE: Mapping[str, Row] = {
    "--amp|--fp16|AMP": Elsewhere("evaluate RUN --precision f16"),
    "--ema|EMA": NotNeeded("evaluation uses averaged parameters; --live the others"),
    "MAX_DURATION": Elsewhere("evaluate RUN --max-duration"),
    "--ckpt|CHECKPOINT": Elsewhere("import"),
}


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, rows = given.number("NUM_GPUS", 1), given.number("--gpu_batch_size", 32)
    yield Change("data.batching.budget", float(gpus * rows), "--gpu_batch_size × NUM_GPUS")
    yield Change("data.batching.max_rows", gpus * rows, "--gpu_batch_size × NUM_GPUS")
    yield Change("data.batching.row_multiple", gpus, "NUM_GPUS")
    update = gpus * rows * given.number("--grad_accumulation", 1)
    if update != 1152:
        yield f"an update has {update} utterances, and NVIDIA's learning rate was chosen for 1152"
    amp = str(given.get("--amp", False))
    if amp.startswith(":"):
        yield f"AMP={amp}: the colon is a mistake of NVIDIA's script, which trains without AMP; it is left out"
    is_amp = given.read("--amp", lambda value: truth(str(value).removeprefix(":")), False)
    yield Change("training.precision", "f16" if is_amp else "tf32", "--amp")
    if is_amp:
        yield FLOAT16
    if "--pre_allocate_range" in given:
        yield Change("training.pre_allocate", True, "--pre_allocate_range")
        yield "pre-allocation computes one batch of each bucket, not of each length in the range"
    name = "PAD_TO_MAX_DURATION" if "PAD_TO_MAX_DURATION" in given else f"{AUDIO}.pad_to_max_duration"
    if given.is_on("PAD_TO_MAX_DURATION") or given.is_on(f"{AUDIO}.pad_to_max_duration"):
        longest = given.number("MAX_DURATION", given.number(f"{AUDIO}.max_duration", base.data.filters.max_duration_s))
        # the slowest speed makes an utterance longer
        seconds = longest / (base.data.speeds[0] - base.data.speed_jitter)
        yield Change("data.batching.edges_s", (round(seconds + 0.005, 2),), name)
    yield from _optimizer(given, base)
    yield from speeds(given)
    yield from _augmentation(given)
    if f"{ENCODER}.blocks" in given:
        keys = [key for key in under(ENCODER, BLOCKS).split() if key in given]
        section = {key.rpartition(".")[2]: given.get(key) for key in keys}
        mels = {"in_feats": base.model.front_end.num_features, "activation": "relu"}
        encoder = settings_of(mels | section, Path("the YAML file"))
        blocks = [replace(block, copies=len([*alike])) for block, alike in groupby(encoder.blocks)]
        yield Change("model.encoder", replace(encoder, blocks=tuple(blocks)), " ".join(keys))


FLOAT16 = "bf16 is as fast as float16 and needs no scaling of the loss: --training.precision bf16"


def speeds(given: Given) -> Iterator[Change]:
    """Yields the speeds of NVIDIA's recipes: DALI multiplies the duration by the rate, so that 1.15 is slower."""
    names = [f"{AUDIO}.speed_perturbation.{name}" for name in ("min_rate", "max_rate")]
    if names[0] in given:
        slow, fast = 1 / given.number(names[1], 1.15), 1 / given.number(names[0])
        yield Change("data.speeds", ((slow + fast) / 2,), " ".join(names))
        yield Change("data.speed_jitter", (fast - slow) / 2, " ".join(names))


def _optimizer(given: Given, base: Experiment) -> Iterator[Change | str]:
    """AdamW and LAMB have the settings of NVIDIA's code; NovoGrad is the recipe's."""
    name = given.get("--optimizer", "novograd")
    shared: dict[str, Any] = {"schedule": base.optim.schedule, "decay_factors": EVERYTHING, "clip_at": 0.0}
    if name == "adamw":
        yield Change("optim", AdamW(b2=0.999, **shared), "--optimizer")
    elif name == "lamb98":
        yield Change("optim", LAMB(b2=0.98, eps=1e-9, **shared), "--optimizer")
    elif name not in ("novograd", "fused_novograd"):
        yield f"--optimizer {name} is not NVIDIA's: NovoGrad is kept"


def _augmentation(given: Given) -> Iterator[Change]:
    cut, filters = f"{FEATURES}.cutout_augment", f"{FEATURES}.n_filt"
    if num := given.number(f"{cut}.masks"):
        bins = (given.number(f"{cut}.min_freq", 20), given.number(f"{cut}.max_freq", 20))
        frames = (given.number(f"{cut}.min_time", 5), given.number(f"{cut}.max_time", 5))
        cutout = Cutout(num=num, freq_bins=bins, time_frames=frames)
        yield Change("model.augment", (cutout, SpecAugment.quartznet()), f"{cut}.masks")
    elif filters in given and not given.named(f"{FEATURES}.spec_augment."):
        yield Change("model.augment", (), filters)


QUARTZNET = System(
    "quartznet",
    "NVIDIA's QuartzNet",
    r"(?m)SpeechRecognition/QuartzNet|quartznet\w*_speedp|^quartznet:|LR_EXP_GAMMA|GPU_BATCH_SIZE|--gpu_batch_size|librispeech-.*-wav\.json",
    ROWS,
    lambda given: "quartznet_librispeech",
    _derive,
    (
        Program("train.sh", OF_TRAIN_SH),
        Program("train_benchmark.sh", command="benchmark train"),
        Program("train.py", OF_TRAIN_PY),
        Program("inference_benchmark.sh", command="benchmark inference RUN", rows=OF_INFERENCE),
        Program("inference.sh, evaluation.sh, inference.py", command="evaluate RUN", rows=OF_INFERENCE),
    ),
)
