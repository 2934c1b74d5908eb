"""wav2vec 2.0 of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition/wav2vec2 at commit 729963dd)."""

import re
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment, Init, model_of
from asr_jax.migration.engine import Change, Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Table, To, numbers, one_of, real, text, truth
from asr_jax.models.wav2vec2 import Hourglass, Wav2Vec2
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.optim.optimizers import NEVER
from asr_jax.optim.schedules import Polynomial, TriStage

ENCODER, HEAD, RATE_HZ = "model.encoder", "model.heads.pretrain", 16000
FLOAT32 = "norms, softmax, similarities and losses are float32 with every precision"
LOGGED = "RUN/events.jsonl has all figures"
SPECTROGRAM = "the encoder reads the waveform; use a mel front-end with extractor=() and num_features instead"
TABLE = Table({
    "NUM_GPUS": PART,
    "--max_tokens MAX_TOKENS": PART,
    "--num_concat_batches NUM_CONCAT_BATCHES": PART,
    "--update_freq UPDATE_FREQ UPDATE_FREQUENCY": To("training.accumulate"),
    "--max_update MAX_UPDATE": To("training.num_updates"),
    "--lr LEARNING_RATE": To("optim.schedule.peak_lr", real),
    "--seed SEED": To("seed"),
    "--fp16 FP16": PART,
    "--bf16 BF16": PART,
    "--amp AMP": PART,
    "--data DATASET_DIR": PART,
    "--train_subset TRAIN_SUBSET": PART,
    "--valid_subset VALID_SUBSET": PART,
    "--output_dir OUTPUT_DIR": To("run_dir", text),
    "--save_frequency SAVE_FREQUENCY": To("training.saving.every_epochs"),
    "--hourglass_transformer HOURGLASS_CONFIG": PART,
    "--hourglass_resample": To(f"{ENCODER}.hourglass.resample", text),
    "--w2v_path PRETRAINED_MODEL": PART,
    "--freeze_finetune_updates FREEZE_FINETUNE_UPDATES": PART,
    "--epochs_this_job EPOCHS_THIS_JOB": To("training.limits.epochs_this_job"),
    "--cudnn_benchmark CUDNN_BENCHMARK": NotNeeded("XLA chooses kernels when it compiles"),
    "--optimizer OPTIMIZER": Absent("FairseqAdam is the optimizer of this recipe", ("adam",)),
    "--ema EMA": To("training.ema.decay", real),
    "--log_frequency": To("training.log_every"),
    "--log_file LOG_FILE": NotNeeded(LOGGED),
    "--log_keys": NotNeeded(LOGGED),
    "--benchmark_epochs_num NUM_EPOCHS": Elsewhere("benchmark train --updates"),
    "NUM_WARMUP_EPOCHS NUM_WARUP_EPOCHS": Elsewhere("benchmark train --warm-ups"),
    "--no_save NO_SAVE": Absent("a run always saves; benchmark train and train --dry-run write nothing"),
    "--resume": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--ckpt": To("run_dir", text),
    "--keep_milestones": To("training.saving.milestone_epochs", numbers),
    "--cpu CPU": Elsewhere("train --device cpu"),
    "--min_loss_scale": To("training.loss_scale.floor", real),
    "--fp16_init_scale": To("training.loss_scale.initial", real),
    "--fp32_transformer_layernorm FP32_TRANSFORMER_LAYERNORM": NotNeeded(FLOAT32),
    "--fp32_mha_softmax FP32_MHA_SOFTMAX": NotNeeded(FLOAT32),
    "--fp32_cosine_sim FP32_COSINE_SIM": NotNeeded(FLOAT32),
    "--fp32_pos_conv FP32_POS_CONV": Absent("the positional convolution has training.precision"),
    "--fp32_conv_norms FP32_CONV_NORMS": NotNeeded(FLOAT32),
    "--mha": NotNeeded("there is one attention; checkpoints of both layouts load"),
    "--num_workers": To("data.workers"),
    "--skip_invalid_size_inputs_valid_test": NotNeeded("data.filters applies to training, and validation uses all"),
    "--max_tokens_valid": NotNeeded("validation has batches as large as training"),
    "--batch_size_valid": NotNeeded("validation has batches as large as training"),
    "--required_batch_size_multiple": NotNeeded("the rows of a batch are a multiple of the sub-batches"),
    "--required_seq_len_multiple": NotNeeded("the shapes of the buckets are static"),
    "--num_batch_buckets": To("data.batching.num_buckets"),
    "--batch_size BATCH_SIZE": PART,
    "--sample_rate": Absent("files of any rate are resampled to 16 kHz", (RATE_HZ,)),
    "--enable_padding": NotNeeded("utterances are always padded, not cut to the shortest of a batch"),
    "--min_sample_size MIN_SAMPLE_SIZE": To("data.filters.min_duration_s", lambda value: real(value) / RATE_HZ),
    "--max_sample_size MAX_SAMPLE_SIZE": To("data.crop_s", lambda value: real(value) / RATE_HZ),
    "--adam_betas": PART,
    "--adam_eps": To("optim.eps", real),
    "--weight_decay": To("optim.weight_decay", real),
    "--clip_norm": To("optim.clip_at", real),
    "--lr_policy": PART,
    "--warmup_updates WARMUP_UPDATES": PART,
    "--hold_updates HOLD_UPDATES": PART,
    "--initial_lr_scale": To("optim.schedule.start_share", real),
    "--final_lr_scale": To("optim.schedule.final_share", real),
    "--lr_poly_power": PART,
    "--lr_exp_decay": To("optim.schedule.gamma", real),
    "--dropout DROPOUT": To(f"{ENCODER}.dropout", real),
    "--attention_dropout ATTENTION_DROPOUT": To(f"{ENCODER}.attention_dropout", real),
    "--activation_dropout": To(f"{ENCODER}.activation_dropout", real),
    "--dropout_input DROPOUT_INPUT": To(f"{ENCODER}.input_dropout", real),
    "--dropout_features DROPOUT_FEATURES": To(f"{ENCODER}.feature_dropout", real),
    "--apply_mask": NotNeeded("a probability above 0 masks"),
    "--mask_length": To(f"{ENCODER}.time_mask.length"),
    "--mask_prob MASK_PROB": To(f"{ENCODER}.time_mask.probability", real),
    "--require_same_masks": NotNeeded("numbers of masked frames follow lengths; set time_mask.same_count for NVIDIA's"),
    "--mask_selection": To(f"{ENCODER}.time_mask.selection", text),
    "--mask_other": To(f"{ENCODER}.time_mask.other", real),
    "--no_mask_overlap": Absent("set time_mask.min_space"),
    "--mask_min_space": NotNeeded("it has an effect with --no_mask_overlap alone"),
    "--mask_channel_length": To(f"{ENCODER}.channel_mask.length"),
    "--mask_channel_prob MASK_CHANNEL_PROB": To(f"{ENCODER}.channel_mask.probability", real),
    "--mask_channel_before": To(f"{ENCODER}.channel_mask_first", truth),
    "--mask_channel_selection": To(f"{ENCODER}.channel_mask.selection", text),
    "--mask_channel_other": To(f"{ENCODER}.channel_mask.other", real),
    "--no_mask_channel_overlap": Absent("set channel_mask.min_space"),
    "--mask_channel_min_space": NotNeeded("it has an effect with --no_mask_channel_overlap alone"),
    "--feature_grad_mult FEATURE_GRAD_MULT": To(f"{ENCODER}.extractor_gradient", real),
    "--encoder_layerdrop ENCODER_LAYERDROP": To(f"{ENCODER}.layer_drop", real),
    "LAYERDROP": NotNeeded("NVIDIA's script sets it and does not read it: ENCODER_LAYERDROP is the variable"),
    "--mask_dropout": To(f"{ENCODER}.time_mask.dropout", real),
    # fine-tuning
    "--final_dropout": To("model.heads.ctc.dropout", real),
    "--blank_weight": To("model.heads.ctc.blank_weight", real),
    "--blank_mode": To("model.heads.ctc.blank_mode", text),
    "--labels": Absent("labels are the characters of the texts; another dictionary is data.tokenizer.path", ("ltr",)),
    # pre-training
    "--extractor_mode EXTRACTOR_MODE": To(f"{ENCODER}.extractor_norm", one_of(default="group", layer_norm="layer")),
    "--encoder_layers ENCODER_LAYERS": To(f"{ENCODER}.num_layers"),
    "--encoder_embed_dim ENCODER_EMBED_DIM": To(f"{ENCODER}.dim"),
    "--encoder_ffn_embed_dim ENCODER_FFN_EMBED_DIM": To(f"{ENCODER}.feedforward_dim"),
    "--encoder_attention_heads ENCODER_ATTENTION_HEADS": To(f"{ENCODER}.num_heads"),
    "--activation_fn": To(f"{ENCODER}.activation", text),
    "--final_dim FINAL_DIM": PART,
    "--layer_norm_first LAYER_NORM_FIRST": To(f"{ENCODER}.norm_first", truth),
    "--conv_feature_layers": PART,
    "--conv_bias CONV_BIAS": To(f"{ENCODER}.extractor_bias", truth),
    "--logit_temp": To(f"{HEAD}.temperature", real),
    "--quantize_targets": NotNeeded("the contrastive head always quantises its targets"),
    "--quantize_input": To(f"{ENCODER}.quantized_input", truth),
    "--target_glu": To(f"{HEAD}.gated_targets", truth),
    "--quantizer_depth": To(f"{HEAD}.quantizer.depth"),
    "--quantizer_factor": To(f"{HEAD}.quantizer.factor"),
    "--latent_vars": To(f"{HEAD}.quantizer.entries"),
    "--latent_groups": To(f"{HEAD}.quantizer.groups"),
    "--latent_dim": PART,
    "--num_negatives": To(f"{HEAD}.num_negatives"),
    "--negatives_from_everywhere": To(f"{HEAD}.from_everywhere", truth),
    "--cross_sample_negatives": To(f"{HEAD}.across_negatives"),
    "--codebook_negatives": To(f"{HEAD}.codebook_negatives"),
    "--conv_pos": To(f"{ENCODER}.position_kernel"),
    "--conv_pos_groups": To(f"{ENCODER}.position_groups"),
    "--latent_temp LATENT_TEMP": PART,
    "--normalize NORMALIZE": PART,
    "--infonce": NotNeeded("the contrastive loss is InfoNCE"),
    "--loss_weights LOSS_WEIGHTS": PART,
    "--use_spectrogram_features": Absent(SPECTROGRAM),
    "--rotary_embeddings": To(f"{ENCODER}.rotary", truth),
    **{
        f"--spectrogram_{name}": NotNeeded("it has an effect with --use_spectrogram_features alone")
        for name in ("feature_stacking", "feature_subsampling", "window_size", "window_stride", "n_filt")
    },
    # inference
    "FINETUNED_MODEL": Elsewhere("import"),
    "--steps NUM_STEPS NUM_REPEATS": Elsewhere("benchmark inference RUN --repeats"),
    "--warmup_steps NUM_WARMUP_STEPS NUM_WARMUP_REPEATS": Elsewhere("benchmark inference RUN --warm-up-repeats"),
    "MAX_DURATION --max_duration": Elsewhere("evaluate RUN --ignore-above"),
    "--save_predictions PREDICTION_FILE": Elsewhere("evaluate RUN --predictions"),
    "--save_logits LOGITS_FILE": Elsewhere("evaluate RUN --log-probs"),
    "--transcribe_wav --transcribe_filelist": Elsewhere("transcribe RUN"),
    "--torchscript --torchscript_export TORCHSCRIPT TORCHSCRIPT_SAVE": Absent("export RUN --to onnx instead"),
    "--labels_path --w2v_path_for_args": NotNeeded("a run contains its tokenizer and settings"),
})  # fmt: skip
OF_EVALUATION = Table(
    {
        "--w2v_path FINETUNED_MODEL": Elsewhere("import"),
        "--valid_subset VALID_SUBSET": Elsewhere("evaluate RUN --data"),
        "--batch_size BATCH_SIZE": Elsewhere("evaluate RUN --batch-size"),
        "--bf16 BF16": Elsewhere("evaluate RUN --precision bf16"),
        "--fp16 FP16": Elsewhere("evaluate RUN --precision f16"),
    }
)
COMMON: dict[str, Any] = {
    "NUM_GPUS": 8, "--data": "/datasets/LibriSpeech", "--train_subset": "train-full-960", "--valid_subset": "dev-other",
    "--num_concat_batches": 1, "--update_freq": 1, "--fp16": False, "--bf16": False, "--ema": 0.0, "--hold_updates": 0,
    "--log_frequency": 1,
}  # fmt: skip
PRETRAIN_BASE: dict[str, Any] = COMMON | {
    "--max_tokens": 1_400_000, "--num_concat_batches": 8, "--max_update": 400_000, "--lr": 5e-4, "--lr_policy": "poly",
    "--warmup_updates": 32_000, "--hourglass_transformer": "[2,(8,4),2]", "--save_frequency": 1,
}  # fmt: skip
PRETRAIN_LARGE: dict[str, Any] = COMMON | {
    "--max_tokens": 1_200_000, "--update_freq": 16, "--max_update": 800_000, "--lr": 5e-3, "--lr_policy": "poly",
    "--warmup_updates": 32_000, "--max_sample_size": 320_000, "--loss_weights": "0.1 0.0", "--normalize": True,
    "--extractor_mode": "layer_norm", "--layer_norm_first": True, "--final_dim": 768,
    "--latent_temp": "2.0 0.1 0.999995", "--encoder_layerdrop": 0.0, "--dropout_input": 0.0,
    "--dropout_features": 0.0, "--dropout": 0.0, "--attention_dropout": 0.0, "--conv_bias": True,
    "--encoder_layers": 24, "--encoder_embed_dim": 1024, "--encoder_ffn_embed_dim": 4096,
    "--encoder_attention_heads": 16, "--feature_grad_mult": 1.0, "--save_frequency": 1,
}  # fmt: skip
TRAIN_PY: dict[str, Any] = {
    "--max_tokens": 1_400_000, "--num_concat_batches": 1, "--update_freq": 64, "--max_update": 400_000, "--lr": 5e-4,
    "--lr_policy": "poly", "--warmup_updates": 32_000, "--hold_updates": 0, "--adam_eps": 1e-6, "--weight_decay": 0.01,
    "--clip_norm": 0.0, "--ema": 0.0, "--fp16": False, "--bf16": False, "--train_subset": "train",
    "--valid_subset": "valid", "NUM_GPUS": 1, "--log_frequency": 1, "--save_frequency": 10,
}  # fmt: skip


def _finetune(lr: float, updates: int, frozen: int, mask: float, channels: float, **others: Any) -> dict[str, Any]:
    """Defaults of a script for fine-tuning; the base ones have batches of 3.2 million samples."""
    return COMMON | {
        "--lr": lr, "--max_update": updates, "--freeze_finetune_updates": frozen, "--mask_prob": mask,
        "--mask_channel_prob": channels, "--max_tokens": 3_200_000, "--encoder_layerdrop": 0.1, "--seed": 1,
        "--lr_policy": "exp", "--warmup_updates": updates // 10, "--hold_updates": updates // 10 * 4,
        "--save_frequency": 10, **{f"--{name}": value for name, value in others.items()},
    }  # fmt: skip


VOX: dict[str, Any] = {"max_tokens": 1_280_000, "w2v_path": "pretrained_models/libri960_big.pt"}
BASE_MODEL: dict[str, Any] = {"w2v_path": "results/pretrain_base/wav2vec2_update400000.pt"}
CLEAN_100: dict[str, Any] = {"train_subset": "train-clean-100"}
TEN_HOURS: dict[str, Any] = {"train_subset": "train-10h"}
ONE_HOUR: dict[str, Any] = {"train_subset": "train-1h"}
VOX_100 = VOX | CLEAN_100 | {"num_concat_batches": 2}
PROGRAMS = (
    Program(r"(pretrain|finetune)_base_benchmark\.sh", command="benchmark train"),
    Program(r"pretrain_base\.sh", PRETRAIN_BASE),
    Program(r"pretrain_large\.sh", PRETRAIN_LARGE),
    Program(r"finetune_base_960h\.sh", _finetune(1e-4, 320_000, 0, 0.5, 0.1, **BASE_MODEL)),
    Program(r"finetune_base_100h\.sh", _finetune(3e-5, 80_000, 0, 0.65, 0.5, **BASE_MODEL, **CLEAN_100)),
    Program(r"finetune_base_10h\.sh", _finetune(5e-5, 20_000, 10_000, 0.65, 0.5, **BASE_MODEL, **TEN_HOURS)),
    Program(r"finetune_base_1h\.sh", _finetune(5e-5, 13_000, 10_000, 0.65, 0.25, **BASE_MODEL, **ONE_HOUR)),
    Program(r"finetune_vox_960h\.sh", _finetune(3e-5, 320_000, 10_000, 0.5, 0.25, **VOX, num_concat_batches=3)),
    Program(r"finetune_vox_100h\.sh", _finetune(3e-5, 80_000, 10_000, 0.5, 0.5, **VOX_100)),
    Program(r"finetune_vox_960h_cv\.sh", _finetune(2e-5, 80_000, 0, 0.25, 0.5, **VOX, num_concat_batches=3)),
    Program(r"inference_benchmark\.sh", command="benchmark inference RUN", table=OF_EVALUATION),
    Program(r"inference\.(sh|py)", command="evaluate RUN", table=OF_EVALUATION),
    Program(r"(^|/)train\.py", TRAIN_PY),
)  # fmt: skip


def _is_finetuning(given: Given) -> bool:
    return "--w2v_path" in given or "--freeze_finetune_updates" in given


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, parts, tokens = (
        given.number("NUM_GPUS", 1),
        given.number("--num_concat_batches", 1),
        given.number("--max_tokens"),
    )
    of_batch = ("--max_tokens", "--num_concat_batches", "NUM_GPUS")
    yield Change("data.batching.budget", gpus * parts * tokens / RATE_HZ, of_batch)
    if "--batch_size" in given:
        yield Change(
            "data.batching.max_rows", gpus * parts * given.number("--batch_size"), ("--batch_size", *of_batch[1:])
        )
    folder = given.get("--data", "")
    for name, field in (("--train_subset", "data.train"), ("--valid_subset", "data.validation")):
        if name in given:
            paths = tuple(f"{folder}/{each}.tsv".lstrip("/" * (not folder)) for each in given.get(name).split(","))
            yield Change(field, paths, ("--data", name), ", ")
    is_f16 = given.read("--fp16", truth, False) or given.read("--amp", truth, False)
    precision = "f16" if is_f16 else "bf16" if given.read("--bf16", truth, False) else "tf32"
    yield Change("training.precision", precision, ("--fp16", "--bf16"), ", ")
    if "--output_dir" in given:
        yield Change("name", Path(given.get("--output_dir")).name, ("--output_dir",))
    if "--adam_betas" in given:
        for field, beta in zip(("b1", "b2"), given.read("--adam_betas", _floats), strict=True):
            yield Change(f"optim.{field}", beta, ("--adam_betas",))
    yield from _schedule(given, base)
    yield from (_of_finetuning if _is_finetuning(given) else _of_pretraining)(given, base)


def _floats(value: Any) -> tuple[float, ...]:
    words = value if isinstance(value, list) else re.split(r"[\s,()\[\]]+", str(value).strip("()[]"))
    return tuple(float(each) for each in words)


def _schedule(given: Given, base: Experiment) -> Iterator[Change | str]:
    schedule, updates = base.optim.schedule, max(given.number("--max_update", 1), 1)
    warmup, hold = given.number("--warmup_updates"), given.number("--hold_updates")
    names = ("--lr_policy", "--warmup_updates", "--hold_updates")
    if given.get("--lr_policy") == "exp":
        shares = {"warmup_share": warmup / updates, "hold_share": hold / updates}
        if not isinstance(schedule, TriStage):
            schedule = TriStage(rate_set=schedule.rate_set)
        yield Change("optim.schedule", replace(schedule, **shares), (*names, "--max_update"), ", ")
    else:
        if not isinstance(schedule, Polynomial):
            schedule = Polynomial(rate_set=schedule.rate_set)
        power = given.read("--lr_poly_power", float, 1.0)
        made = replace(schedule, warmup_updates=warmup, hold_updates=hold, power=power)
        yield Change("optim.schedule", made, (*names, "--lr_poly_power"), ", ")


def _of_pretraining(given: Given, base: Experiment) -> Iterator[Change | str]:
    sub_batches = given.number("NUM_GPUS", 1) * given.number("--num_concat_batches", 1)
    for field in ("model.sub_batches", "data.batching.row_multiple"):
        yield Change(field, sub_batches, ("--num_concat_batches", "NUM_GPUS"))
    yield Change("data.batching.max_rows", max(512, 8 * sub_batches), ())
    if glass := given.get("--hourglass_transformer"):
        before, (middle, factor), after = literal_eval(glass)
        resample = given.get("--hourglass_resample", "naive")
        yield Change(
            f"{ENCODER}.hourglass", Hourglass(before, middle, factor, after, resample), ("--hourglass_transformer",)
        )
    else:
        yield Change(f"{ENCODER}.hourglass", Hourglass(), ("--encoder_layers",))
    if "--final_dim" in given:
        width = given.number("--final_dim")
        width = width if width > 0 else given.number("--encoder_embed_dim", 768)
        yield Change(f"{HEAD}.dim", width, ("--final_dim",))
        latent = given.number("--latent_dim") * given.number("--latent_groups", 2)
        yield Change(f"{HEAD}.codes_dim", latent or width, ("--latent_dim" if latent else "--final_dim",))
    if "--latent_temp" in given:
        values = given.read("--latent_temp", _floats)
        for name, value in zip(("start_temperature", "end_temperature", "decay"), values, strict=True):
            yield Change(f"{HEAD}.quantizer.{name}", value, ("--latent_temp",))
    if "--loss_weights" in given:
        for name, value in zip(("diversity", "penalty"), given.read("--loss_weights", _floats), strict=True):
            yield Change(f"{HEAD}.{name}", value, ("--loss_weights",))
    if "--conv_feature_layers" in given:
        layers = _layers(given.get("--conv_feature_layers"))
        yield Change(f"{ENCODER}.extractor", layers, ("--conv_feature_layers",))
    if "--normalize" in given:
        front_end = wav2vec2(normalise=given.read("--normalize", truth))
        yield Change("model.front_end", front_end, ("--normalize",))


def _layers(formula: str) -> tuple[WaveformConv, ...]:
    """Returns the convolutions of a sum such as [(512,10,5)] + [(512,3,2)]*4."""
    found = re.findall(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)\s*\]?\s*(?:\*\s*(\d+))?", formula)
    return tuple(WaveformConv(int(c), int(k), int(s)) for c, k, s, times in found for _ in range(int(times or 1)))


def _of_finetuning(given: Given, base: Experiment) -> Iterator[Change | str]:
    path = given.get("--w2v_path", "")
    encoder = base.model.encoder
    if Path(path).is_file():
        found = model_of(path)
        assert found  # a .pt file describes itself
        yield Change("model.encoder", _with_rates(found[0], encoder), ("--w2v_path",))
        yield Change("model.front_end", found[1], ("--w2v_path",))
    elif re.search(r"libri960_big|large|vox", path):
        yield Change("model.encoder", _with_rates(Wav2Vec2.large(), encoder), ("--w2v_path",))
        yield Change("model.front_end", wav2vec2(normalise=True), ("--w2v_path",))
        yield f"{path} is not on this machine: the sizes are those of the large model; migrate where the file is"
    elif path:
        yield f"{path} is not on this machine: the sizes are those of NVIDIA's Base; migrate where the file is"
    if path:
        yield Change("init", Init(path=path, new=base.init.new), ("--w2v_path",))
    if "--freeze_finetune_updates" in given:
        rules = (
            ("encoder/extractor/.*", NEVER),
            ("encoder/(?!extractor/).*", float(given.number("--freeze_finetune_updates"))),
            ("rest", 0.0),
        )
        yield Change("optim.freeze_updates", rules, ("--freeze_finetune_updates",))


def _with_rates(encoder: Any, rates: Any) -> Any:
    """Returns the sizes of one encoder with the masks and the rates of another."""
    names = (
        "time_mask", "channel_mask", "dropout", "attention_dropout", "activation_dropout", "input_dropout",
        "feature_dropout", "layer_drop", "extractor_gradient", "taps",
    )  # fmt: skip
    return replace(encoder, **{name: getattr(rates, name) for name in names})


WAV2VEC2 = System(
    "wav2vec2",
    "NVIDIA's wav2vec 2.0",
    r"wav2vec2|w2v_path|NUM_CONCAT_BATCHES|--num_concat_batches|HOURGLASS|(pretrain|finetune)_(base|large|vox)",
    TABLE,
    lambda given: "wav2vec2_finetune" if _is_finetuning(given) else "wav2vec2_pretrain",
    _derive,
    PROGRAMS,
)
