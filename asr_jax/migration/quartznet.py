"""QuartzNet of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition/QuartzNet at commit 729963dd)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from asr_jax.audio.specaugment import Cutout, SpecAugment
from asr_jax.config import Experiment
from asr_jax.migration.changes import Change
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.nvidia import AUDIO, FEATURES, FLOAT16, OF_EXAMPLES, OF_YAML, manifests, speeds
from asr_jax.migration.rows import (
    PART,
    Absent,
    Elsewhere,
    NotNeeded,
    Row,
    To,
    argument,
    arguments,
    numbers,
    one_of,
    to,
    truth,
    under,
)
from asr_jax.optim.optimizers import EVERYTHING, LAMB, AdamW
from asr_jax.pretrained.quartznet import settings_of

ENCODER = "quartznet.encoder"
SPEC_AUGMENT = {
    "freq_masks": "num_freq_masks", "max_freq": "max_freq_bins", "time_masks": "num_time_masks",
    "max_time": "max_time_frames",
}  # fmt: skip


def _manifests(value: Any) -> str:
    """Returns manifests for a command; DATASET is the name of a set of LibriSpeech."""
    return manifests(value) if ".json" in str(value) else argument(f"librispeech-{value}-wav.json")


BLOCKS = "in_feats activation use_conv_masks blocks"
ROWS: Mapping[str, Row] = {
    **OF_EXAMPLES,
    **OF_YAML,
    "DATASET|--val_manifest": Elsewhere("evaluate RUN --data", _manifests),
    **to("training",
         "--epochs|EPOCHS=num_epochs "
         "--grad_accumulation|--update-freq|GRAD_ACCUMULATION|GRAD_ACCUMULATION_STEPS=accumulate"),
    **to("optim.schedule",
         "--warmup_epochs|WARMUP_EPOCHS=warmup_epochs --hold_epochs|HOLD_EPOCHS=hold_epochs "
         "--lr_exp_gamma|LR_EXP_GAMMA=gamma"),
    "--amp|--fp16|AMP --pre_allocate_range|PRE_ALLOCATE NUM_GPUS --gpu_batch_size|GPU_BATCH_SIZE "
    "--optimizer|OPTIMIZER PAD_TO_MAX_DURATION": PART,
    "--lr_policy|LR_POLICY": To("optim.schedule.decay", one_of(exponential="exponential", legacy="polynomial")),
    "--multi_tensor_ema|MULTI_TENSOR_EMA": NotNeeded("the average is part of the compiled update"),
    "--dali_device|DALI_DEVICE": NotNeeded("features are computed on the device that trains"),
    "--ckpt|CHECKPOINT": "init.path",
    "--save_frequency|SAVE_FREQUENCY": "training.saving.every_epochs",
    "--keep_milestones": To("training.saving.milestone_epochs", numbers),
    "--save_best_from": NotNeeded("the best checkpoint is kept from the first validation on"),
    "--eval_frequency|EVAL_FREQUENCY": "training.validation.every",
    "--dataset_dir|DATA_DIR": "data.root",
    "--override_config": NotNeeded("it sets a key of the YAML file"),
    "MAX_DURATION": "data.filters.max_duration_s",
    # train_benchmark.sh
    "ACC_BATCH_SIZE": Elsewhere("benchmark train --batch"),
    "GRAD_ACC_SEQ": Elsewhere("benchmark train --accumulation", arguments),
    "NUM_GPUS_SEQ": Elsewhere("benchmark train --num-devices", arguments),
    # inference.sh, evaluation.sh and inference_benchmark.sh
    "BATCH_SIZE|--batch_size": Elsewhere("evaluate RUN --batch-size"),
    "NUM_STEPS|--steps": Elsewhere("benchmark inference RUN --steps"),
    "NUM_WARMUP_STEPS|--warmup_steps": Elsewhere("benchmark inference RUN --warm-ups"),
    "BATCH_SIZE_SEQ": Elsewhere("benchmark inference RUN --batch-sizes", arguments),
    "MAX_DURATION_SEQ": Elsewhere("benchmark inference RUN --seconds", arguments),
    # the YAML file
    "name": To("name", lambda value: str(value).lower()),
    "labels": To("data.tokenizer.alphabet", "".join),
    f"{AUDIO}.normalize_transcripts": To(
        "data.tokenizer.normaliser", lambda value: "english_letters.v1" if truth(value) else "none"
    ),
    f"{AUDIO}.pad_to_max_duration": PART,
    f"{AUDIO}.ignore_offline_speed_perturbation": NotNeeded("each manifest entry is one utterance"),
    f"{AUDIO}.speed_perturbation.p": NotNeeded("DALI applies it to every utterance"),
    f"{AUDIO}.speed_perturbation.discrete": Absent("rates are drawn from the whole range; set data.speeds instead"),
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
OF_TRAIN_PY = (
    "NUM_GPUS=1 --epochs 400 --warmup_epochs 0 --hold_epochs 0 --amp false --gpu_batch_size 32 --lr 0.001 "
    "--min_lr 1e-5 --lr_policy exponential --lr_exp_gamma 0.99 --weight_decay 0.001 --grad_accumulation 1 "
    "--optimizer novograd --ema 0.0 --save_frequency 10 --eval_frequency 200 --log_frequency 25 "
    "--prediction_frequency 100"
)
OF_TRAIN_SH = (
    "NUM_GPUS=8 --epochs 260 --warmup_epochs 2 --hold_epochs 140 --amp false --gpu_batch_size 72 --lr 0.01 "
    "--min_lr 1e-5 --lr_policy exponential --lr_exp_gamma 0.981 --weight_decay 0.001 --grad_accumulation 2 "
    "--optimizer fused_novograd --ema 0.999 --save_frequency 10 --eval_frequency 241 --log_frequency 1 "
    "--prediction_frequency 241"
)
OF_INFERENCE: Mapping[str, Row] = {
    "--amp|--fp16|AMP": Elsewhere("evaluate RUN --precision f16"),
    "--ema|EMA": NotNeeded("evaluation uses averaged parameters; --live the others"),
    "MAX_DURATION": Elsewhere("evaluate RUN --ignore-above"),
    "--ckpt|CHECKPOINT": Elsewhere("import --config configs/quartznet_librispeech.py --out RUN"),
    "--val_manifests|VAL_MANIFESTS|--val_manifest|DATASET": Elsewhere("evaluate RUN --data", _manifests),
}


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, rows = given.count("NUM_GPUS", 1), given.count("--gpu_batch_size", 32)
    yield Change("data.batching.budget", float(gpus * rows), "--gpu_batch_size × NUM_GPUS")
    yield Change("data.batching.max_rows", gpus * rows, "--gpu_batch_size × NUM_GPUS")
    yield Change("data.batching.row_multiple", gpus, "NUM_GPUS")
    update = gpus * rows * given.count("--grad_accumulation", 1)
    if update != 1152:
        yield f"an update has {update} utterances, and NVIDIA's learning rate was chosen for 1152"
    amp = str(given.get("--amp", False))
    is_amp = given.read("--amp", lambda value: truth(str(value).removeprefix(":")), False)
    if amp.startswith(":"):
        state = "on" if is_amp else "off"
        yield f"AMP={amp}: NVIDIA's script trains without AMP because of the colon; it is left out: AMP is {state} here"
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
    if given.is_on(f"{AUDIO}.normalize_transcripts"):
        yield (
            "data.tokenizer.normaliser does not spell out numbers and abbreviations, as NVIDIA's does: english.v1 "
            "does, with the extra `text`"
        )
    yield from _augmentation(given)
    if f"{ENCODER}.blocks" in given:
        keys = [key for key in under(ENCODER, BLOCKS).split() if key in given]
        section = {key.rpartition(".")[2]: given.get(key) for key in keys}
        mels = {"in_feats": base.model.front_end.num_features, "activation": "relu"}
        encoder = settings_of(mels | section, given.file)
        blocks = [replace(block, copies=len([*alike])) for block, alike in groupby(encoder.blocks)]
        yield Change("model.encoder", replace(encoder, blocks=tuple(blocks)), " ".join(keys))


OPTIMIZERS = ("novograd", "fused_novograd", "adamw", "lamb98")


def _optimizer(given: Given, base: Experiment) -> Iterator[Change]:
    """AdamW and LAMB have the settings of NVIDIA's code; NovoGrad is the recipe's."""
    name = given.read("--optimizer", one_of(**{each: each for each in OPTIMIZERS}), "novograd")
    shared: dict[str, Any] = {"schedule": base.optim.schedule, "decay_factors": EVERYTHING, "clip_at": 0.0}
    if name == "adamw":
        yield Change("optim", AdamW(b2=0.999, **shared), "--optimizer")
    elif name == "lamb98":
        yield Change("optim", LAMB(b2=0.98, eps=1e-9, **shared), "--optimizer")
    else:
        yield Change("optim", base.optim, "--optimizer")


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
