"""QuartzNet of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition/QuartzNet at commit 729963dd)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from asr_jax.audio.specaugment import Cutout, SpecAugment
from asr_jax.config import Experiment
from asr_jax.migration.engine import Change, Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Table, To, one_of, real, text, truth, words
from asr_jax.migration.rows import numbers as epochs
from asr_jax.optim.optimizers import EVERYTHING, LAMB, AdamW
from asr_jax.pretrained.quartznet import settings_of

AUDIO, FEATURES, ENCODER = "input_train.audio_dataset", "input_train.filterbank_features", "quartznet.encoder"
TABLE = Table({
    "--epochs EPOCHS": To("training.num_epochs"),
    "--warmup_epochs WARMUP_EPOCHS": To("optim.schedule.warmup_epochs"),
    "--hold_epochs HOLD_EPOCHS": To("optim.schedule.hold_epochs"),
    "--epochs_this_job EPOCHS_THIS_JOB": To("training.limits.epochs_this_job"),
    "--cudnn_benchmark CUDNN_BENCHMARK": NotNeeded("XLA chooses kernels when it compiles"),
    "--amp --fp16 AMP": PART,
    "--seed SEED": To("seed"),
    "--pre_allocate_range PRE_ALLOCATE": PART,
    "NUM_GPUS": PART,
    "--gpu_batch_size GPU_BATCH_SIZE": PART,
    "--grad_accumulation --update-freq GRAD_ACCUMULATION GRAD_ACCUMULATION_STEPS": To("training.accumulate"),
    "--lr LEARNING_RATE": To("optim.schedule.peak_lr", real),
    "--min_lr MIN_LEARNING_RATE": To("optim.schedule.min_lr", real),
    "--lr_policy LR_POLICY": To("optim.schedule.decay", one_of(exponential="exponential", legacy="polynomial")),
    "--lr_exp_gamma LR_EXP_GAMMA": To("optim.schedule.gamma", real),
    "--weight_decay": To("optim.weight_decay", real),
    "--optimizer OPTIMIZER": PART,
    "--ema EMA": To("training.ema.decay", real),
    "--multi_tensor_ema MULTI_TENSOR_EMA": NotNeeded("the average is part of the compiled update"),
    "--dali_device DALI_DEVICE": NotNeeded("features are computed on the device that trains"),
    "--resume RESUME": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--ckpt CHECKPOINT": To("init.path", text),
    "--save_frequency SAVE_FREQUENCY": To("training.saving.every_epochs"),
    "--keep_milestones": To("training.saving.milestone_epochs", epochs),
    "--save_best_from": NotNeeded("the best checkpoint is kept from the first validation on"),
    "--eval_frequency EVAL_FREQUENCY": To("training.validation.every"),
    "--log_frequency": To("training.log_every"),
    "--prediction_frequency PREDICTION_FREQUENCY": To("training.validation.sample_every"),
    "--model_config MODEL_CONFIG": NotNeeded("the file is one of the sources"),
    "--train_manifests TRAIN_MANIFESTS": To("data.train", words),
    "--val_manifests VAL_MANIFESTS": To("data.validation", words),
    "--dataset_dir DATA_DIR": To("data.root", text),
    "--output_dir OUTPUT_DIR": To("run_dir", text),
    "--log_file LOG_FILE": NotNeeded("RUN/events.jsonl has all figures"),
    "--benchmark_epochs_num BENCHMARK_EPOCHS": Elsewhere("benchmark train --updates"),
    "--override_config": NotNeeded("it sets a key of the YAML file"),
    "MAX_DURATION": To("data.filters.max_duration_s", real),
    "PAD_TO_MAX_DURATION": PART,
    # train_benchmark.sh
    "ACC_BATCH_SIZE": Elsewhere("benchmark train --batch"),
    "GRAD_ACC_SEQ": Elsewhere("benchmark train --accumulation"),
    "NUM_GPUS_SEQ": Elsewhere("benchmark train --num-devices"),
    # inference.sh, evaluation.sh and inference_benchmark.sh
    "DATASET --val_manifest": Elsewhere("evaluate RUN --data"),
    "BATCH_SIZE --batch_size": Elsewhere("evaluate RUN --batch-size"),
    "NUM_STEPS --steps": Elsewhere("benchmark inference RUN --steps"),
    "NUM_WARMUP_STEPS --warmup_steps": Elsewhere("benchmark inference RUN --warm-ups"),
    "BATCH_SIZE_SEQ": Elsewhere("benchmark inference RUN --batch-sizes"),
    "MAX_DURATION_SEQ": Elsewhere("benchmark inference RUN --seconds"),
    "CPU --cpu": Elsewhere("evaluate RUN --device cpu"),
    "LOGITS_FILE --save_logits --logits_save_to": Elsewhere("evaluate RUN --log-probs"),
    "PREDICTION_FILE --save_predictions --save_prediction": Elsewhere("evaluate RUN --predictions"),
    "--transcribe_wav --transcribe_filelist": Elsewhere("transcribe RUN"),
    "--torchscript --torchscript_export": Absent("there is no TorchScript: export RUN --to onnx"),
    # the YAML file
    "name": To("name", lambda value: str(value).lower()),
    "labels": To("data.tokenizer.alphabet", "".join),
    "input_val.*": NotNeeded("validation uses the front-end of training without augmentation, and no filters"),
    f"{AUDIO}.sample_rate {FEATURES}.sample_rate": To("model.front_end.rate_hz"),
    f"{AUDIO}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    f"{AUDIO}.normalize_transcripts": To(
        "data.tokenizer.normaliser", lambda value: "english_letters.v1" if truth(value) else "none"
    ),
    f"{AUDIO}.max_duration": To("data.filters.max_duration_s", real),
    f"{AUDIO}.min_duration": To("data.filters.min_duration_s", real),
    f"{AUDIO}.pad_to_max_duration": PART,
    f"{AUDIO}.ignore_offline_speed_perturbation": NotNeeded("each manifest entry is one utterance"),
    f"{AUDIO}.speed_perturbation.min_rate": PART,
    f"{AUDIO}.speed_perturbation.max_rate": PART,
    f"{AUDIO}.speed_perturbation.p": NotNeeded("DALI applies it to every utterance"),
    f"{AUDIO}.speed_perturbation.discrete": Absent("rates are drawn from the whole range; set data.speeds instead"),
    f"{FEATURES}.normalize": Absent("the front-end normalises each bin of an utterance", ("per_feature",)),
    f"{FEATURES}.window_size": To("model.front_end.window_ms", lambda value: 1000 * real(value)),
    f"{FEATURES}.window_stride": To("model.front_end.hop_ms", lambda value: 1000 * real(value)),
    f"{FEATURES}.window": Absent("the front-end has a Hann window", ("hann",)),
    f"{FEATURES}.n_filt": To("model.front_end.num_mels"),
    f"{FEATURES}.n_fft": To("model.front_end.fft_length"),
    f"{FEATURES}.frame_splicing {ENCODER}.frame_splicing": Absent("NVIDIA's code has no other value either", (1,)),
    f"{FEATURES}.dither": To("model.front_end.dither", real),
    f"{FEATURES}.pad_align": NotNeeded("the shapes of the buckets are static"),
    f"{FEATURES}.max_duration {FEATURES}.pad_to_max_duration": NotNeeded("as in audio_dataset"),
    **{f"{FEATURES}.spec_augment.{name}": PART for name in ("freq_masks", "max_freq", "time_masks", "max_time")},
    **{f"{FEATURES}.spec_augment.{name}": Absent("widths begin at 0") for name in ("min_freq", "min_time")},
    **{
        f"{FEATURES}.cutout_augment.{name}": PART
        for name in ("masks", "min_freq", "max_freq", "min_time", "max_time")
    },
    **{f"{ENCODER}.{name}": PART for name in ("in_feats", "activation", "use_conv_masks", "blocks")},
    "quartznet.encoder.init quartznet.decoder.init": NotNeeded("convolutions have xavier_uniform", ),
    "quartznet.decoder.in_feats": NotNeeded("it is the width of the last block"),
})  # fmt: skip
OF_TRAIN_PY: dict[str, Any] = {
    "--epochs": 400, "--warmup_epochs": 0, "--hold_epochs": 0, "--amp": False, "--gpu_batch_size": 32, "--lr": 1e-3,
    "--min_lr": 1e-5, "--lr_policy": "exponential", "--lr_exp_gamma": 0.99, "--weight_decay": 1e-3,
    "--grad_accumulation": 1, "--optimizer": "novograd", "--ema": 0.0, "--save_frequency": 10, "--eval_frequency": 200,
    "--log_frequency": 25, "--prediction_frequency": 100, "NUM_GPUS": 1,
}  # fmt: skip
OF_TRAIN_SH: dict[str, Any] = {
    "--epochs": 260, "--warmup_epochs": 2, "--hold_epochs": 140, "--amp": False, "NUM_GPUS": 8, "--gpu_batch_size": 72,
    "--lr": 0.01, "--min_lr": 1e-5, "--lr_policy": "exponential", "--lr_exp_gamma": 0.981, "--weight_decay": 1e-3,
    "--grad_accumulation": 2, "--optimizer": "fused_novograd", "--ema": 0.999, "--save_frequency": 10,
    "--eval_frequency": 241, "--log_frequency": 1, "--prediction_frequency": 241,
}  # fmt: skip
OF_INFERENCE = Table(
    {
        "--amp --fp16 AMP": Elsewhere("evaluate RUN --precision f16"),
        "--ema EMA": NotNeeded("evaluation uses averaged parameters; --live the others"),
        "MAX_DURATION": Elsewhere("evaluate RUN --ignore-above"),
        "--ckpt CHECKPOINT": Elsewhere("import"),
    }
)


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, rows = given.number("NUM_GPUS", 1), given.number("--gpu_batch_size", 32)
    of_batch = ("--gpu_batch_size", "NUM_GPUS")
    yield Change("data.batching.budget", float(gpus * rows), of_batch)
    yield Change("data.batching.max_rows", gpus * rows, of_batch)
    yield Change("data.batching.row_multiple", gpus, ("NUM_GPUS",))
    update = gpus * rows * given.number("--grad_accumulation", 1)
    if update != 1152:
        yield f"an update has {update} utterances, and NVIDIA's learning rate was chosen for 1152"
    amp = str(given.get("--amp", False))
    if amp.startswith(":"):
        yield f"AMP={amp}: the colon is a mistake of NVIDIA's script, which trains without AMP; it is left out"
    if truth(amp.removeprefix(":")):
        yield Change("training.precision", "f16", ("--amp",))
        yield "bf16 is as fast as float16 and needs no scaling of the loss: --training.precision bf16"
    else:
        yield Change("training.precision", "tf32", ("--amp",))
    if "--pre_allocate_range" in given:
        yield Change("training.pre_allocate", True, ("--pre_allocate_range",))
        yield "pre-allocation computes one batch of each bucket, not of each length in the range"
    if given.read("PAD_TO_MAX_DURATION", truth, False) or given.read(f"{AUDIO}.pad_to_max_duration", truth, False):
        longest = given.number("MAX_DURATION", given.number(f"{AUDIO}.max_duration", base.data.filters.max_duration_s))
        # the slowest speed makes an utterance longer
        seconds = longest / (base.data.speeds[0] - base.data.speed_jitter)
        name = "PAD_TO_MAX_DURATION" if "PAD_TO_MAX_DURATION" in given else f"{AUDIO}.pad_to_max_duration"
        yield Change("data.batching.edges_s", (round(seconds + 0.005, 2),), (name,))
    yield from _optimizer(given, base)
    yield from _augmentation(given, base)
    if f"{ENCODER}.blocks" in given:
        keys = (f"{ENCODER}.in_feats", f"{ENCODER}.activation", f"{ENCODER}.use_conv_masks", f"{ENCODER}.blocks")
        section = {key.rpartition(".")[2]: given.get(key) for key in keys if key in given}
        mels = {"in_feats": base.model.front_end.num_features, "activation": "relu"}
        encoder = settings_of(mels | section, Path("the YAML file"))
        blocks = [replace(block, copies=len([*alike])) for block, alike in groupby(encoder.blocks)]
        yield Change("model.encoder", replace(encoder, blocks=tuple(blocks)), keys, ", ")


def _optimizer(given: Given, base: Experiment) -> Iterator[Change | str]:
    """AdamW and LAMB have the settings of NVIDIA's code; NovoGrad is the recipe's."""
    name, schedule = given.get("--optimizer", "novograd"), base.optim.schedule
    if name == "adamw":
        adam = AdamW(schedule=schedule, b2=0.999, decay_factors=EVERYTHING, clip_at=0.0)
        yield Change("optim", adam, ("--optimizer",))
    elif name == "lamb98":
        lamb = LAMB(schedule=schedule, b2=0.98, eps=1e-9, decay_factors=EVERYTHING, clip_at=0.0)
        yield Change("optim", lamb, ("--optimizer",))
    elif name not in ("novograd", "fused_novograd"):
        yield f"--optimizer {name} is not NVIDIA's: NovoGrad is kept"


def _augmentation(given: Given, base: Experiment) -> Iterator[Change | str]:
    rates = [f"{AUDIO}.speed_perturbation.{name}" for name in ("min_rate", "max_rate")]
    if rates[0] in given:
        # DALI multiplies the duration by the rate, so that 1.15 is slower
        slow, fast = 1 / given.number(rates[1], 1.15), 1 / given.number(rates[0])
        yield Change("data.speeds", ((slow + fast) / 2,), tuple(rates), ", ")
        yield Change("data.speed_jitter", (fast - slow) / 2, tuple(rates), ", ")
    spec, cut = f"{FEATURES}.spec_augment.", f"{FEATURES}.cutout_augment."
    fields = {
        "freq_masks": "num_freq_masks", "max_freq": "max_freq_bins", "time_masks": "num_time_masks",
        "max_time": "max_time_frames",
    }  # fmt: skip
    if f"{cut}masks" in given and (num := given.number(f"{cut}masks")):
        bins = (given.number(f"{cut}min_freq", 20), given.number(f"{cut}max_freq", 20))
        frames = (given.number(f"{cut}min_time", 5), given.number(f"{cut}max_time", 5))
        cutout = Cutout(num=num, freq_bins=bins, time_frames=frames)
        yield Change("model.augment", (cutout, SpecAugment.quartznet()), (f"{cut}masks",))
    elif FEATURES_GIVEN in given and not any(f"{spec}{name}" in given for name in fields):
        yield Change("model.augment", (), (FEATURES_GIVEN,))
        return
    for name, ours in fields.items():
        if f"{spec}{name}" in given:
            yield Change(f"model.augment.SpecAugment.{ours}", given.number(f"{spec}{name}"), (f"{spec}{name}",))


FEATURES_GIVEN = f"{FEATURES}.n_filt"
QUARTZNET = System(
    "quartznet",
    "NVIDIA's QuartzNet",
    r"(?m)SpeechRecognition/QuartzNet|quartznet\w*_speedp|^quartznet:|LR_EXP_GAMMA|GPU_BATCH_SIZE|--gpu_batch_size|librispeech-.*-wav\.json",
    TABLE,
    lambda given: "quartznet_librispeech",
    _derive,
    (
        Program(r"train\.sh", OF_TRAIN_SH),
        Program(r"train_benchmark\.sh", command="benchmark train"),
        Program(r"(^|/)train\.py", OF_TRAIN_PY),
        Program(r"inference_benchmark\.sh", command="benchmark inference RUN", table=OF_INFERENCE),
        Program(r"(inference|evaluation)\.sh|inference\.py", command="evaluate RUN", table=OF_INFERENCE),
    ),
)
