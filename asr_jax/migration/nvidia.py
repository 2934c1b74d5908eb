"""Rows that NVIDIA's recipes of DeepLearningExamples and CAIMAN-ASR, which comes from them, have in common."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from asr_jax.migration.changes import Change
from asr_jax.migration.engine import Given
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, To, argument, times, to, truth

AUDIO, FEATURES = "input_train.audio_dataset", "input_train.filterbank_features"
FLOAT16 = "bf16 needs no scaling of the loss, on GPUs that have it (from A100 on): --training.precision bf16"
OF_NVIDIA: Mapping[str, Row] = {
    "--seed|SEED": "seed",
    "--lr|--learning_rate|LEARNING_RATE": "optim.schedule.peak_lr",
    "--weight_decay": "optim.weight_decay",
    "--ema|EMA": "training.ema.decay",
    "--log_frequency": "training.log_every",
    "--output_dir|OUTPUT_DIR": "run_dir",
    "--cudnn_benchmark|CUDNN_BENCHMARK --no_cudnn_benchmark": NotNeeded("XLA chooses kernels when it compiles"),
    "--resume|RESUME": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--log_file|LOG_FILE": NotNeeded("RUN/events.jsonl has all figures"),
    "--cpu|CPU": Elsewhere("evaluate RUN --device cpu"),
}
OF_EXAMPLES: Mapping[str, Row] = {
    **OF_NVIDIA,
    "--epochs_this_job|EPOCHS_THIS_JOB": "training.limits.epochs_this_job",
    "--save_predictions|--save_prediction|PREDICTION_FILE": Elsewhere("evaluate RUN --predictions"),
    "--save_logits|--logits_save_to|LOGITS_FILE": Elsewhere("evaluate RUN --log-probs"),
    "--transcribe_wav --transcribe_filelist": Elsewhere("transcribe RUN"),
    "--torchscript|TORCHSCRIPT --torchscript_export|TORCHSCRIPT_SAVE":
        Absent("there is no TorchScript: export RUN --to onnx"),
    "--benchmark_epochs_num|BENCHMARK_EPOCHS|NUM_EPOCHS": Elsewhere("benchmark train --updates"),
}  # fmt: skip
"""Rows of both recipes of DeepLearningExamples."""
OF_YAML: Mapping[str, Row] = {
    "--min_lr|--min_learning_rate|MIN_LEARNING_RATE": "optim.schedule.min_lr",
    "--prediction_frequency|PREDICTION_FREQUENCY": "training.validation.sample_every",
    "--model_config|MODEL_CONFIG": NotNeeded("the file is read if it is found"),
    "--train_manifests|TRAIN_MANIFESTS|--train_tar_files": "data.train",
    "--val_manifests|VAL_MANIFESTS|--val_tar_files": "data.validation",
    "input_val.*": NotNeeded(
        "validation has the front-end and the normaliser of training, and neither augmentation nor filters"
    ),
    f"{AUDIO}.sample_rate|{FEATURES}.sample_rate": "model.front_end.rate_hz",
    f"{AUDIO}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    f"{AUDIO}.max_duration": "data.filters.max_duration_s",
    f"{AUDIO}.min_duration": "data.filters.min_duration_s",
    f"{AUDIO}.speed_perturbation.min_rate {AUDIO}.speed_perturbation.max_rate": PART,
    f"{FEATURES}.normalize": Absent("the front-end normalises each bin of an utterance", ("per_feature",)),
    f"{FEATURES}.window_size": To("model.front_end.window_ms", times(1000)),
    f"{FEATURES}.window_stride": To("model.front_end.hop_ms", times(1000)),
    f"{FEATURES}.window": Absent("the front-end has a Hann window", ("hann",)),
    **to("model.front_end", f"{FEATURES}.n_filt=num_mels {FEATURES}.n_fft=fft_length {FEATURES}.dither=dither"),
}
"""Rows of those with YAML files of models: QuartzNet and CAIMAN-ASR."""


def manifests(value: Any) -> str:
    """Returns the paths of manifests as arguments of a command; a text has spaces or commas after each `.json`."""
    return argument(value if isinstance(value, list) else re.split(r"(?<=\.json)[\s,]+", str(value).strip()))


def speeds(given: Given) -> Iterator[Change]:
    """Yields the speeds: DALI multiplies the duration by the rate, so that 1.15 is slower."""
    names = [f"{AUDIO}.speed_perturbation.{name}" for name in ("min_rate", "max_rate")]
    if names[0] in given:
        slow, fast = 1 / given.number(names[1], 1.15), 1 / given.number(names[0])
        yield Change("data.speeds", ((slow + fast) / 2,), " ".join(names), formula="(1 / min_rate + 1 / max_rate) / 2")
        yield Change(
            "data.speed_jitter", (fast - slow) / 2, " ".join(names), formula="(1 / min_rate - 1 / max_rate) / 2"
        )
