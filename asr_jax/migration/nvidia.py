"""What NVIDIA's recipes of DeepLearningExamples have in common, with those that come from them."""

from collections.abc import Iterator, Mapping

from asr_jax.migration.changes import Change
from asr_jax.migration.engine import Given
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, To, times, to, truth

AUDIO, FEATURES = "input_train.audio_dataset", "input_train.filterbank_features"
FLOAT16 = "bf16 is as fast as float16 and needs no scaling of the loss: --training.precision bf16"
OF_NVIDIA: Mapping[str, Row] = {
    "--seed|SEED": "seed",
    **to("optim.schedule",
         "--lr|--learning_rate|LEARNING_RATE=peak_lr --min_lr|--min_learning_rate|MIN_LEARNING_RATE=min_lr"),
    **to("optim", "--weight_decay=weight_decay --clip_norm=clip_at"),
    "--ema|EMA": "training.ema.decay",
    "--epochs_this_job|EPOCHS_THIS_JOB": "training.limits.epochs_this_job",
    "--cudnn_benchmark|CUDNN_BENCHMARK --no_cudnn_benchmark": NotNeeded("XLA chooses kernels when it compiles"),
    "--resume|RESUME": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--log_file|LOG_FILE": NotNeeded("RUN/events.jsonl has all figures"),
    "--log_frequency": "training.log_every",
    "--prediction_frequency|PREDICTION_FREQUENCY": "training.validation.sample_every",
    "--model_config|MODEL_CONFIG": NotNeeded("the file is one of the sources"),
    **to("data",
         "--train_manifests|TRAIN_MANIFESTS|--train_tar_files=train "
         "--val_manifests|VAL_MANIFESTS|--val_tar_files=validation"),
    "--output_dir|OUTPUT_DIR": "run_dir",
    "--cpu|CPU": Elsewhere("evaluate RUN --device cpu"),
    "--save_predictions|--save_prediction|PREDICTION_FILE": Elsewhere("evaluate RUN --predictions"),
    "--save_logits|--logits_save_to|LOGITS_FILE": Elsewhere("evaluate RUN --log-probs"),
    "--transcribe_wav --transcribe_filelist": Elsewhere("transcribe RUN"),
    "--torchscript|TORCHSCRIPT --torchscript_export|TORCHSCRIPT_SAVE":
        Absent("there is no TorchScript: export RUN --to onnx"),
    "--benchmark_epochs_num|BENCHMARK_EPOCHS|NUM_EPOCHS": Elsewhere("benchmark train --updates"),
    "DATASET|--val_manifest": Elsewhere("evaluate RUN --data"),
    # the YAML files
    "input_val.*": NotNeeded("validation uses the front-end of training without augmentation, and no filters"),
    **to("model.front_end",
         f"{AUDIO}.sample_rate|{FEATURES}.sample_rate=rate_hz {FEATURES}.n_filt=num_mels "
         f"{FEATURES}.n_fft=fft_length {FEATURES}.dither=dither"),
    f"{AUDIO}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    **to("data.filters", f"{AUDIO}.max_duration=max_duration_s {AUDIO}.min_duration=min_duration_s"),
    f"{AUDIO}.speed_perturbation.min_rate {AUDIO}.speed_perturbation.max_rate": PART,
    f"{FEATURES}.normalize": Absent("the front-end normalises each bin of an utterance", ("per_feature",)),
    f"{FEATURES}.window_size": To("model.front_end.window_ms", times(1000)),
    f"{FEATURES}.window_stride": To("model.front_end.hop_ms", times(1000)),
    f"{FEATURES}.window": Absent("the front-end has a Hann window", ("hann",)),
}  # fmt: skip


def speeds(given: Given) -> Iterator[Change]:
    """Yields the speeds: DALI multiplies the duration by the rate, so that 1.15 is slower."""
    names = [f"{AUDIO}.speed_perturbation.{name}" for name in ("min_rate", "max_rate")]
    if names[0] in given:
        slow, fast = 1 / given.number(names[1], 1.15), 1 / given.number(names[0])
        yield Change("data.speeds", ((slow + fast) / 2,), " ".join(names))
        yield Change("data.speed_jitter", (fast - slow) / 2, " ".join(names))
