"""wav2vec 2.0 of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition/wav2vec2 at commit 729963dd)."""

import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment, Init, model_of
from asr_jax.migration.changes import Change, parts
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.nvidia import OF_EXAMPLES
from asr_jax.migration.rows import (
    PART,
    Absent,
    Elsewhere,
    NotNeeded,
    Row,
    To,
    numbers,
    one_of,
    real,
    times,
    to,
    truth,
    words,
)
from asr_jax.models.wav2vec2 import Hourglass, Wav2Vec2
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.optim.optimizers import NEVER
from asr_jax.optim.schedules import Polynomial, TriStage

ENCODER, HEAD, RATE_HZ = "model.encoder", "model.heads.pretrain", 16000


def _layers(formula: str) -> tuple[WaveformConv, ...]:
    """Returns the convolutions of a sum such as [(512,10,5)] + [(512,3,2)]*4."""
    found = re.findall(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)\s*\]?\s*(?:\*\s*(\d+))?", formula)
    return tuple(WaveformConv(int(c), int(k), int(s)) for c, k, s, num in found for _ in range(int(num or 1)))


ROWS: Mapping[str, Row] = {
    **OF_EXAMPLES,
    "--clip_norm": "optim.clip_at",
    "NUM_GPUS --max_tokens|MAX_TOKENS --num_concat_batches|NUM_CONCAT_BATCHES --batch_size|BATCH_SIZE --fp16|FP16 "
    "--bf16|BF16 --amp|AMP --data|DATASET_DIR --train_subset|TRAIN_SUBSET --valid_subset|VALID_SUBSET --adam_betas "
    "--w2v_path|PRETRAINED_MODEL --freeze_finetune_updates|FREEZE_FINETUNE_UPDATES --lr_policy --lr_poly_power "
    "--warmup_updates|WARMUP_UPDATES --hold_updates|HOLD_UPDATES --hourglass_transformer|HOURGLASS_CONFIG "
    "--final_dim|FINAL_DIM --latent_dim --latent_temp|LATENT_TEMP --loss_weights|LOSS_WEIGHTS": PART,
    "--normalize|NORMALIZE": To("model.front_end", lambda value: wav2vec2(normalise=truth(value))),
    "--conv_feature_layers": To(f"{ENCODER}.extractor", _layers),
    "--use_spectrogram_features":
        Absent("the encoder reads the waveform; use a mel front-end with extractor=() and num_features instead"),
    "--spectrogram_feature_stacking --spectrogram_feature_subsampling --spectrogram_window_size "
    "--spectrogram_window_stride --spectrogram_n_filt":
        NotNeeded("it has an effect with --use_spectrogram_features alone"),
    **to("training", "--update_freq|UPDATE_FREQ|UPDATE_FREQUENCY=accumulate --max_update|MAX_UPDATE=num_updates"),
    "--save_frequency|SAVE_FREQUENCY": "training.saving.every_epochs",
    "--hourglass_resample": f"{ENCODER}.hourglass.resample",
    "--optimizer|OPTIMIZER": Absent("FairseqAdam is the optimizer of this recipe", ("adam",)),
    "--log_keys": NotNeeded("RUN/events.jsonl has all figures"),
    "NUM_WARMUP_EPOCHS|NUM_WARUP_EPOCHS": Elsewhere("benchmark train --warm-ups"),
    "--no_save|NO_SAVE": Absent("a run always saves; benchmark train and train --dry-run write nothing"),
    "--ckpt": "run_dir",
    "--keep_milestones": To("training.saving.milestone_epochs", numbers),
    "--cpu|CPU": Elsewhere("train --device cpu"),
    **to("training.loss_scale", "--min_loss_scale=floor --fp16_init_scale=initial"),
    "--fp32_transformer_layernorm|FP32_TRANSFORMER_LAYERNORM --fp32_mha_softmax|FP32_MHA_SOFTMAX "
    "--fp32_cosine_sim|FP32_COSINE_SIM --fp32_conv_norms|FP32_CONV_NORMS":
        NotNeeded("norms, softmax, similarities and losses are float32 with every precision"),
    "--fp32_pos_conv|FP32_POS_CONV": Absent("the positional convolution has training.precision"),
    "--mha": NotNeeded("there is one attention; checkpoints of both layouts load"),
    "--num_workers": "data.workers",
    "--skip_invalid_size_inputs_valid_test": NotNeeded("data.filters applies to training, and validation uses all"),
    "--max_tokens_valid --batch_size_valid": NotNeeded("validation has batches as large as training"),
    "--required_batch_size_multiple": NotNeeded("the rows of a batch are a multiple of the sub-batches"),
    "--required_seq_len_multiple": NotNeeded("the shapes of the buckets are static"),
    "--num_batch_buckets": "data.batching.num_buckets",
    "--sample_rate": Absent("files of any rate are resampled to 16 kHz", (RATE_HZ,)),
    "--enable_padding": NotNeeded("utterances are always padded, not cut to the shortest of a batch"),
    "--min_sample_size|MIN_SAMPLE_SIZE": To("data.filters.min_duration_s", times(1 / RATE_HZ)),
    "--max_sample_size|MAX_SAMPLE_SIZE": To("data.crop_s", times(1 / RATE_HZ)),
    "--adam_eps": "optim.eps",
    **to("optim.schedule", "--initial_lr_scale=start_share --final_lr_scale=final_share --lr_exp_decay=gamma"),
    **to(ENCODER,
         "--dropout|DROPOUT=dropout --attention_dropout|ATTENTION_DROPOUT=attention_dropout "
         "--activation_dropout=activation_dropout --dropout_input|DROPOUT_INPUT=input_dropout "
         "--dropout_features|DROPOUT_FEATURES=feature_dropout --mask_channel_before=channel_mask_first "
         "--feature_grad_mult|FEATURE_GRAD_MULT=extractor_gradient "
         "--encoder_layerdrop|ENCODER_LAYERDROP=layer_drop --encoder_layers|ENCODER_LAYERS=num_layers "
         "--encoder_embed_dim|ENCODER_EMBED_DIM=dim --encoder_ffn_embed_dim|ENCODER_FFN_EMBED_DIM=feedforward_dim "
         "--encoder_attention_heads|ENCODER_ATTENTION_HEADS=num_heads --activation_fn=activation "
         "--layer_norm_first|LAYER_NORM_FIRST=norm_first --conv_bias|CONV_BIAS=extractor_bias "
         "--quantize_input=quantized_input --conv_pos=position_kernel --conv_pos_groups=position_groups "
         "--rotary_embeddings=rotary"),
    "--apply_mask": NotNeeded("a probability above 0 masks"),
    **to(f"{ENCODER}.time_mask",
         "--mask_length=length --mask_prob|MASK_PROB=probability --mask_selection=selection --mask_other=other "
         "--mask_dropout=dropout"),
    "--require_same_masks": NotNeeded("numbers of masked frames follow lengths; set time_mask.same_count for NVIDIA's"),
    "--no_mask_overlap": Absent("set time_mask.min_space"),
    "--mask_min_space": NotNeeded("it has an effect with --no_mask_overlap alone"),
    **to(f"{ENCODER}.channel_mask",
         "--mask_channel_length=length --mask_channel_prob|MASK_CHANNEL_PROB=probability "
         "--mask_channel_selection=selection --mask_channel_other=other"),
    "--no_mask_channel_overlap": Absent("set channel_mask.min_space"),
    "--mask_channel_min_space": NotNeeded("it has an effect with --no_mask_channel_overlap alone"),
    "LAYERDROP": NotNeeded("NVIDIA's script sets it and does not read it: ENCODER_LAYERDROP is the variable"),
    # fine-tuning
    **to("model.heads.ctc", "--final_dropout=dropout --blank_weight=blank_weight --blank_mode=blank_mode"),
    "--labels": Absent("labels are the characters of the texts; another dictionary is data.tokenizer.path", ("ltr",)),
    # pre-training
    "--extractor_mode|EXTRACTOR_MODE": To(f"{ENCODER}.extractor_norm", one_of(default="group", layer_norm="layer")),
    **to(HEAD,
         "--logit_temp=temperature --target_glu=gated_targets --num_negatives=num_negatives "
         "--negatives_from_everywhere=from_everywhere --cross_sample_negatives=across_negatives "
         "--codebook_negatives=codebook_negatives"),
    "--quantize_targets": NotNeeded("the contrastive head always quantises its targets"),
    **to(f"{HEAD}.quantizer",
         "--quantizer_depth=depth --quantizer_factor=factor --latent_vars=entries --latent_groups=groups"),
    "--infonce": NotNeeded("the contrastive loss is InfoNCE"),
    # inference
    "FINETUNED_MODEL": Elsewhere("import --out RUN"),
    "--steps|NUM_STEPS|NUM_REPEATS": Elsewhere("benchmark inference RUN --repeats"),
    "--warmup_steps|NUM_WARMUP_STEPS|NUM_WARMUP_REPEATS": Elsewhere("benchmark inference RUN --warm-up-repeats"),
    "MAX_DURATION|--max_duration": Elsewhere("evaluate RUN --ignore-above"),
    "--labels_path --w2v_path_for_args": NotNeeded("a run contains its tokenizer and settings"),
}  # fmt: skip
OF_EVALUATION: Mapping[str, Row] = {
    "--w2v_path|FINETUNED_MODEL": Elsewhere("import --out RUN"),
    "--valid_subset|VALID_SUBSET": Elsewhere("evaluate RUN --data"),
    "--batch_size|BATCH_SIZE": Elsewhere("evaluate RUN --batch-size"),
    "--bf16|BF16": Elsewhere("evaluate RUN --precision bf16"),
    "--fp16|FP16": Elsewhere("evaluate RUN --precision f16"),
}
COMMON = (
    "NUM_GPUS=8 --data /datasets/LibriSpeech --train_subset train-full-960 --valid_subset dev-other "
    "--num_concat_batches 1 --update_freq 1 --fp16 false --bf16 false --ema 0.0 --hold_updates 0 --log_frequency 1"
)
PRETRAIN_BASE = (
    f"{COMMON} --max_tokens 1400000 --num_concat_batches 8 --max_update 400000 --lr 0.0005 --lr_policy poly "
    "--warmup_updates 32000 --hourglass_transformer [2,(8,4),2] --save_frequency 1"
)
PRETRAIN_LARGE = (
    f"{COMMON} --max_tokens 1200000 --update_freq 16 --max_update 800000 --lr 0.005 --lr_policy poly "
    "--warmup_updates 32000 --max_sample_size 320000 --loss_weights 0.1 0.0 --normalize true "
    "--extractor_mode layer_norm --layer_norm_first true --final_dim 768 --latent_temp 2.0 0.1 0.999995 "
    "--encoder_layerdrop 0.0 --dropout_input 0.0 --dropout_features 0.0 --dropout 0.0 --attention_dropout 0.0 "
    "--conv_bias true --encoder_layers 24 --encoder_embed_dim 1024 --encoder_ffn_embed_dim 4096 "
    "--encoder_attention_heads 16 --feature_grad_mult 1.0 --save_frequency 1"
)
TRAIN_PY = (
    "NUM_GPUS=1 --max_tokens 1400000 --num_concat_batches 1 --update_freq 64 --max_update 400000 --lr 0.0005 "
    "--lr_policy poly --warmup_updates 32000 --hold_updates 0 --adam_eps 1e-6 --weight_decay 0.01 --clip_norm 0.0 "
    "--ema 0.0 --fp16 false --bf16 false --train_subset train --valid_subset valid --log_frequency 1 "
    "--save_frequency 10"
)


def _finetune(lr: str, updates: int, frozen: int, mask: float, channels: float, others: str) -> str:
    """Defaults of a script for fine-tuning; the base ones have batches of 3.2 million samples."""
    return (
        f"{COMMON} --max_update {updates} --warmup_updates {updates // 10} --hold_updates {updates // 10 * 4} "
        f"--lr {lr} --freeze_finetune_updates {frozen} --mask_prob {mask} --mask_channel_prob {channels} --seed 1 "
        f"--max_tokens 3200000 --encoder_layerdrop 0.1 --lr_policy exp --save_frequency 10 {others}"
    )


VOX = "--max_tokens 1280000 --w2v_path pretrained_models/libri960_big.pt --num_concat_batches"
VOX_100 = f"{VOX} 2 --train_subset train-clean-100"
BASE = "--w2v_path results/pretrain_base/wav2vec2_update400000.pt --train_subset"
PROGRAMS = (
    Program("pretrain_base_benchmark.sh, finetune_base_benchmark.sh", command="benchmark train"),
    Program("pretrain_base.sh", PRETRAIN_BASE),
    Program("pretrain_large.sh", PRETRAIN_LARGE),
    Program("finetune_base_960h.sh", _finetune("1e-4", 320_000, 0, 0.5, 0.1, f"{BASE} train-full-960")),
    Program("finetune_base_100h.sh", _finetune("3e-5", 80_000, 0, 0.65, 0.5, f"{BASE} train-clean-100")),
    Program("finetune_base_10h.sh", _finetune("5e-5", 20_000, 10_000, 0.65, 0.5, f"{BASE} train-10h")),
    Program("finetune_base_1h.sh", _finetune("5e-5", 13_000, 10_000, 0.65, 0.25, f"{BASE} train-1h")),
    Program("finetune_vox_960h.sh", _finetune("3e-5", 320_000, 10_000, 0.5, 0.25, f"{VOX} 3")),
    Program("finetune_vox_100h.sh", _finetune("3e-5", 80_000, 10_000, 0.5, 0.5, VOX_100)),
    Program("finetune_vox_960h_cv.sh", _finetune("2e-5", 80_000, 0, 0.25, 0.5, f"{VOX} 3")),
    Program("inference_benchmark.sh", command="benchmark inference RUN", rows=OF_EVALUATION),
    Program("inference.sh, inference.py", command="evaluate RUN", rows=OF_EVALUATION),
    Program("train.py", TRAIN_PY),
)  # fmt: skip


def _is_finetuning(given: Given) -> bool:
    return "--w2v_path" in given or "--freeze_finetune_updates" in given


def _one_each(given: Given, name: str, place: str, fields: str) -> Iterator[Change]:
    """Yields a change of each field to one of the numbers of a value, such as "(0.9, 0.98)" or "2.0 0.1"."""
    names = fields.split()

    def read(value: Any) -> list[float]:
        found = [real(each) for each in words(re.sub(r"[()\[\]']", "", str(value)))]
        if len(found) != len(names):
            raise ValueError(f"expected {len(names)} numbers")
        return found

    for field, value in zip(names, given.read(name, read, ()), strict=False):
        yield Change(f"{place}.{field}", value, name)


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    batches = given.count("NUM_GPUS", 1) * given.count("--num_concat_batches", 1)
    budget = batches * given.number("--max_tokens") / RATE_HZ
    yield Change("data.batching.budget", budget, "--max_tokens × --num_concat_batches × NUM_GPUS")
    if "--batch_size" in given:
        rows = batches * given.number("--batch_size")
        yield Change("data.batching.max_rows", rows, "--batch_size × --num_concat_batches × NUM_GPUS")
    folder = given.get("--data", "")
    for name, field in (("--train_subset", "data.train"), ("--valid_subset", "data.validation")):
        if name in given:
            paths = tuple(f"{folder}/{each}.tsv".lstrip("/" * (not folder)) for each in given.get(name).split(","))
            yield Change(field, paths, f"--data {name}")
    is_f16 = given.is_on("--fp16") or given.is_on("--amp")
    precision = "f16" if is_f16 else "bf16" if given.is_on("--bf16") else "tf32"
    yield Change("training.precision", precision, "--fp16 --bf16")
    if "--output_dir" in given:
        yield Change("name", Path(given.get("--output_dir")).name, "--output_dir")
    yield from _one_each(given, "--adam_betas", "optim", "b1 b2")
    yield from _schedule(given, base)
    yield from _of_finetuning(given, base) if _is_finetuning(given) else _of_pretraining(given, batches)


def _schedule(given: Given, base: Experiment) -> Iterator[Change]:
    schedule, updates = base.optim.schedule, max(given.number("--max_update", 1), 1)
    warmup, hold = given.number("--warmup_updates"), given.number("--hold_updates")
    is_exponential = given.get("--lr_policy") == "exp"
    kind = TriStage if is_exponential else Polynomial
    if not isinstance(schedule, kind):
        schedule = kind(rate_set=schedule.rate_set)
    fields: dict[str, Any] = {"warmup_share": warmup / updates, "hold_share": hold / updates}
    if not is_exponential:
        fields = {"warmup_updates": warmup, "hold_updates": hold, "power": given.real("--lr_poly_power", 1.0)}
    schedule = replace(schedule, **fields)
    yield Change("optim.schedule", schedule, "--lr_policy")
    for stage in ("warmup", "hold"):
        names = {f"{stage}_updates": f"--{stage}_updates"}
        names[f"{stage}_share"] = f"--{stage}_updates --max_update: {stage}_updates / max_update"
        yield from parts("optim.schedule", schedule, names)
    yield from parts("optim.schedule", schedule, {"power": "--lr_poly_power"})


def _of_pretraining(given: Given, sub_batches: int) -> Iterator[Change]:
    for field in ("model.sub_batches", "data.batching.row_multiple"):
        yield Change(field, sub_batches, "--num_concat_batches × NUM_GPUS")
    if "--batch_size" not in given:
        yield Change("data.batching.max_rows", max(512, 8 * sub_batches))
    if glass := given.get("--hourglass_transformer"):
        before, (middle, factor), after = literal_eval(glass)
        hourglass = Hourglass(before, middle, factor, after)
        yield Change(f"{ENCODER}.hourglass", hourglass)
        names = dict.fromkeys(("before", "middle", "factor", "after"), "--hourglass_transformer")
        yield from parts(f"{ENCODER}.hourglass", hourglass, names)
    else:
        yield Change(f"{ENCODER}.hourglass", Hourglass(), "--encoder_layers")
    if "--final_dim" in given:
        width = given.number("--final_dim")
        width = width if width > 0 else given.number("--encoder_embed_dim", 768)
        yield Change(f"{HEAD}.dim", width, "--final_dim")
        latent = given.number("--latent_dim") * given.number("--latent_groups", 2)
        yield Change(f"{HEAD}.codes_dim", latent or width, "--latent_dim" if latent else "--final_dim")
    yield from _one_each(given, "--latent_temp", f"{HEAD}.quantizer", "start_temperature end_temperature decay")
    yield from _one_each(given, "--loss_weights", HEAD, "diversity penalty")


def _of_finetuning(given: Given, base: Experiment) -> Iterator[Change | str]:
    path, found = given.get("--w2v_path", ""), None
    if Path(path).is_file():
        found = model_of(path)
    elif re.search(r"libri960_big|large|vox", path):
        found = Wav2Vec2.large(), wav2vec2(normalise=True)
        yield f"{path} is not on this machine: the sizes are those of the large model; migrate where the file is"
    elif path:
        yield f"{path} is not on this machine: the sizes are those of NVIDIA's Base; migrate where the file is"
    if found:
        rates = {name: getattr(base.model.encoder, name) for name in RATES.split()}
        yield Change("model.encoder", replace(found[0], **rates), "--w2v_path")
        yield Change("model.front_end", found[1], "--w2v_path")
    if path:
        yield Change("init", Init(path=path, new=base.init.new), "--w2v_path")
    if "--freeze_finetune_updates" in given:
        others = given.real("--freeze_finetune_updates")
        rules = (("encoder/extractor/.*", NEVER), ("encoder/(?!extractor/).*", others), ("rest", 0.0))
        yield Change("optim.freeze_updates", rules, "--freeze_finetune_updates")


RATES = (
    "time_mask channel_mask dropout attention_dropout activation_dropout input_dropout feature_dropout layer_drop "
    "extractor_gradient taps"
)
"""Settings of the encoder that fine-tuning does not read from the pre-trained model."""
WAV2VEC2 = System(
    "wav2vec2",
    "NVIDIA's wav2vec 2.0",
    r"wav2vec2|w2v_path|NUM_CONCAT_BATCHES|--num_concat_batches|HOURGLASS|(pretrain|finetune)_(base|large|vox)",
    ROWS,
    lambda given: "wav2vec2_finetune" if _is_finetuning(given) else "wav2vec2_pretrain",
    _derive,
    PROGRAMS,
)
