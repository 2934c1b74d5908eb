"""NeMo's YAML files of CTC models and transducers (examples/asr/conf at commit 8cfedd72), and Hydra's overrides."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.specaugment import Cutout, SpecAugment
from asr_jax.config import Experiment, model_of
from asr_jax.core.errors import UserError
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.migration.changes import Change, parts
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, Table, To, real, to, truth, under, words
from asr_jax.optim.optimizers import EVERYTHING, AdamW, NovoGrad
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.pretrained import conformer, quartznet, squeezeformer_nemo
from asr_jax.pretrained.nemo import front_end_of, heads_of

TRAIN, OPTIM, SCHED, SPEC = "model.train_ds", "model.optim", "model.optim.sched", "model.spec_augment"
ENCODER, DECODER, JOINT = "model.encoder", "model.decoder", "model.joint"
OF_SCHEDULE = "warmup_steps warmup_ratio hold_steps hold_ratio min_lr decay_rate"
WIDTHS = NotNeeded("the head has the width of the encoder and the labels of the tokenizer")
LHOTSE = NotNeeded("there is one reader and one planner of batches (documentation: data)")
TAR = NotNeeded("the format of data is recognised; data.train may be tars")
VALIDATION = NotNeeded("validation reads data.validation in order, without filters, in batches as large as training's")
DONE = NotNeeded("the trainer shuffles, normalises and moves batches to the devices by itself")
KERNELS = NotNeeded("XLA chooses the kernels of attention (training.kernels)")
SAVING = NotNeeded("a run always saves checkpoints (training.saving)")
LOGGING = NotNeeded("a run always prints lines and writes RUN/events.jsonl and RUN/tensorboard")
RESUMING = NotNeeded("training into the folder of a run continues it; --fresh begins another one")
SENT = NotNeeded("python -m asr_jax.observe.forward sends the events of a run to Weights & Biases or MLflow")
SPLIT = NotNeeded("model.heads.transducer.split computes the joint network and the loss in parts")
UNREAD = NotNeeded("it has an effect on other models or on inference alone")


def _fields(section: str, pairs: str) -> dict[str, str]:
    """Returns the keys of a section by the names of fields, from pairs as in d_model=dim."""
    return {name: f"{section}.{key}" for key, name in (pair.split("=") for pair in pairs.split())}


FIELDS = _fields(ENCODER,
    "feat_in=num_mels n_layers=num_layers d_model=dim n_heads=num_heads subsampling=subsampling "
    "subsampling_factor=subsampling_factor subsampling_conv_channels=subsampling_channels causal_downsampling=causal "
    "self_attention_model=positions xscaling=scale_input conv_kernel_size=kernel_size conv_norm_type=norm "
    "dropout=dropout dropout_pre_encoder=input_dropout dropout_emb=position_dropout dropout_att=attention_dropout "
    "use_bias=use_bias adaptive_scale=adaptive_scale time_reduce_idx=reduce_at time_recovery_idx=recover_at "
    "activation=activation",
) | {
    "feedforward_dim": f"{ENCODER}.d_model {ENCODER}.ff_expansion_factor: d_model · ff_expansion_factor",
    "contexts": f"{ENCODER}.att_context_size {ENCODER}.att_context_style",
    "tied_biases": f"{ENCODER}.untie_biases: not untie_biases",
}  # fmt: skip
FIELDS_OF_FRONT_END = _fields("model.preprocessor",
    "sample_rate=rate_hz features=num_mels window_size=window_ms window_stride=hop_ms window=window n_fft=fft_length "
    "lowfreq=low_hz highfreq=high_hz preemph=preemphasis log_zero_guard_value=log_guard dither=dither normalize=then",
)  # fmt: skip
FIELDS_OF_HEADS = {
    "transducer": _fields(DECODER,
        "prednet.pred_hidden=prediction.dim prednet.pred_rnn_layers=prediction.num_layers "
        "prednet.dropout=prediction.dropout",
    ) | _fields(JOINT, "jointnet.joint_hidden=joint_dim jointnet.activation=activation jointnet.dropout=dropout")
    | _fields("model.loss", "tdt_kwargs.durations=durations tdt_kwargs.sigma=sigma tdt_kwargs.omega=omega") | {
        "weight_by": "model.rnnt_reduction",
        "split": f"{TRAIN}.batch_size {JOINT}.fused_batch_size: batch_size / fused_batch_size",
        "scale": "model.aux_ctc.ctc_loss_weight: 1 - ctc_loss_weight",
        "fast_emit": under("model.loss", "warprnnt_numba_kwargs.fastemit_lambda tdt_kwargs.fastemit_lambda"),
        "decoding.max_symbols": "model.decoding.greedy.max_symbols model.decoding.greedy.max_symbols_per_step",
    },
    "ctc": {
        "weight_by": "model.ctc_reduction model.aux_ctc.ctc_reduction", "scale": "model.aux_ctc.ctc_loss_weight",
    },
}  # fmt: skip
PRECISIONS: Mapping[str, str] = {"16": "f16", "bf16": "bf16", "16-mixed": "f16", "bf16-mixed": "bf16"}


def _at_least_0(value: Any) -> int:
    return max(int(value), 0)


ROWS: Mapping[str, Row] = {
    "--config-name --config-path": NotNeeded("the file is read if it is found"),
    "name": To("name", lambda value: str(value).lower()),
    **to("init", "init_from_nemo_model|init_from_pretrained_model|init_from_ptl_ckpt=path init_strict=strict"),
    "model.sample_rate": NotNeeded("it is that of the preprocessor"),
    "model.log_prediction": NotNeeded("training.validation.num_samples transcripts are shown"),
    "model.compute_eval_loss": "training.validation.loss",
    "model.skip_nan_grad": NotNeeded("an update with non-finite values is voided"),
    "model.ctc_reduction model.rnnt_reduction model.labels": PART,
    "model.variational_noise.*": Absent("there is no variational noise", ("start_step",)),
    under("model", "repeat dropout separable kernel_size_factor"): NotNeeded("blocks have their own"),
    "sample_rate repeat dropout separable labels model.model_defaults.*": NotNeeded("other keys refer to it"),
    "model.use_cer": NotNeeded("word and character error rates are both computed"),
    # data
    f"{TRAIN}.manifest_filepath|{TRAIN}.tarred_audio_filepaths": PART,
    f"{TRAIN}.sample_rate": NotNeeded("files of any rate are resampled to that of the front-end"),
    under(TRAIN, "batch_size batch_duration"): PART,
    **to("data.filters", f"{TRAIN}.max_duration=max_duration_s {TRAIN}.min_duration=min_duration_s"),
    f"{TRAIN}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    **to("data", f"{TRAIN}.num_workers=workers model.validation_ds.manifest_filepath=validation"),
    f"{TRAIN}.num_buckets": "data.batching.num_buckets",
    f"{TRAIN}.seed": To("seed", lambda value: 0 if value in ("trng", "randomized") else int(value)),
    f"{TRAIN}.bucketing_batch_size": Absent("rows of the buckets: set data.batching.edges_s and rows"),
    f"{TRAIN}.bucketing_weights": Absent("set data.mixing.weights"),
    f"{TRAIN}.augmentor.*": Absent("set model.augment (Gain, UniformNoise, BackgroundNoise, …) and data.speeds"),
    f"{TRAIN}.max_tps": Absent("set data.filters.max_chars_per_s"),
    f"{TRAIN}.labels": NotNeeded("the model has them"),
    under(TRAIN, "shuffle pin_memory normalize_transcripts parser normalize drop_last"): DONE,
    under(TRAIN, "use_start_end_token trim_mode channel_selector text_field lang_field"): UNREAD,
    under(TRAIN, "is_tarred shuffle_n tarred_shard_strategy shard_strategy defer_setup is_concat"): TAR,
    under(TRAIN, "bucketing_strategy use_lhotse use_bucketing bucket_buffer_size shuffle_buffer_size lhotse "
          "quadratic_duration bucket_duration_bins skip_missing_manifest_entries shard_seed cut_into_windows_duration "
          "concat_sampling_technique concat_sampling_temperature concat_shuffle pad_min_duration"): LHOTSE,
    "model.validation_ds.*": VALIDATION,
    "model.test_ds.*": NotNeeded("python -m asr_jax.evaluate RUN --data … evaluates other sets"),
    "model.tokenizer.dir": PART,
    "model.tokenizer.type": Absent("tokenizers are of SentencePiece or characters", ("bpe",)),
    "model.tokenizer.update_tokenizer model.char_labels.*": UNREAD,
    under("model.preprocessor", "_target_ sample_rate normalize window_size window_stride window features n_fft log "
          "preemph lowfreq highfreq frame_splicing dither log_zero_guard_value log_zero_guard_type mag_power exact_pad "
          "mel_norm"): PART,
    under("model.preprocessor", "pad_to pad_value"): NotNeeded("the shapes of the buckets are static"),
    under("model.preprocessor", "stft_conv stft_exact_pad nb_augmentation_prob use_grads"): UNREAD,
    under(SPEC, "_target_ freq_masks time_masks freq_width time_width rect_masks rect_freq rect_time"): PART,
    # the model
    under(ENCODER, "_target_ feat_in feat_out n_layers d_model subsampling subsampling_factor causal_downsampling "
          "subsampling_conv_channels ff_expansion_factor self_attention_model n_heads att_context_size xscaling "
          "att_context_style untie_biases conv_kernel_size conv_norm_type conv_context_size dropout "
          "dropout_pre_encoder dropout_emb dropout_att reduction use_bias adaptive_scale time_reduce_idx "
          "time_recovery_idx activation conv_mask jasper frame_splicing residual_mode normalization_mode "
          "norm_groups"): PART,
    f"{ENCODER}.pos_emb_max_len": NotNeeded("positions have no limit"),
    under(ENCODER, "use_pytorch_sdpa use_pytorch_sdpa_backends sync_max_audio_length"): KERNELS,
    under(ENCODER, "reduction_position reduction_factor att_context_probs init_mode stochastic_depth_mode "
          "stochastic_depth_start_layer"): UNREAD,
    f"{ENCODER}.stochastic_depth_drop_prob": Absent("this encoder has no stochastic depth"),
    under(ENCODER, "global_tokens global_tokens_spacing global_attn_separate"):
        Absent("there is no attention to a sliding window", (1, -1)),
    under(DECODER, "_target_ vocabulary normalization_mode blank_as_pad context_size prednet.pred_hidden "
          "prednet.pred_rnn_layers prednet.rnn_hidden_size prednet.dropout"): PART,
    under(DECODER, "feat_in num_classes"): WIDTHS,
    under(DECODER, "random_state_sampling prednet.t_max"): Absent("the prediction network begins with zeros"),
    under(JOINT, "_target_ num_extra_outputs jointnet.joint_hidden jointnet.activation jointnet.dropout "
          "fused_batch_size"): PART,
    under(JOINT, "log_softmax preserve_memory fuse_loss_wer experimental_fuse_loss_wer"): SPLIT,
    under(JOINT, "jointnet.encoder_hidden jointnet.pred_hidden"): WIDTHS,
    under("model.decoding", "model_type durations greedy.max_symbols greedy.max_symbols_per_step"): PART,
    "model.decoding.*": NotNeeded("validation is greedy; evaluate RUN --decoding.kind beam has a beam"),
    "model.aux_ctc.ctc_loss_weight model.aux_ctc.ctc_reduction": PART,
    "model.aux_ctc.*": WIDTHS,
    "model.interctc.loss_weights": Absent("add heads CTC(tap='layer_N', scale=W) for the layers"),
    "model.interctc.apply_at_layers": NotNeeded("it belongs to loss_weights"),
    under("model.loss", "loss_name tdt_kwargs.durations tdt_kwargs.sigma tdt_kwargs.omega *.fastemit_lambda "
          "multiblank_rnnt_kwargs.*"): PART,
    "model.loss.*.clamp": Absent("gradients of the joint are not clamped; optim.clip value clips all", (-1.0,)),
    # training
    under(OPTIM, "name lr betas weight_decay eps"): PART,
    under(SCHED, f"name d_model {OF_SCHEDULE}"): PART,
    f"{SCHED}.max_steps": NotNeeded("the schedule ends with the run"),
    under(SCHED, "last_epoch monitor reduce_on_plateau"): UNREAD,
    "trainer.devices trainer.num_nodes trainer.val_check_interval": PART,
    "trainer.max_epochs": To("training.num_epochs", _at_least_0),
    "trainer.max_steps": To("training.num_updates", _at_least_0),
    **to("training", "trainer.accumulate_grad_batches=accumulate trainer.log_every_n_steps=log_every"),
    "trainer.gradient_clip_val": To("optim.clip_at", lambda value: real(value or 0)),
    "trainer.precision": To("training.precision", lambda value: PRECISIONS.get(str(value), "f32")),
    "trainer.sync_batchnorm": NotNeeded("statistics are always computed over all devices"),
    "trainer.limit_train_batches trainer.limit_val_batches": Absent("set data.max_train_utterances", (1.0,)),
    "exp_manager.exp_dir exp_manager.name": PART,
    "exp_manager.checkpoint_callback_params.save_top_k": To("training.saving.keep_best", _at_least_0),
    "exp_manager.checkpoint_callback_params.monitor": Absent("WER decides (training.saving.best_of)", ("val_wer",)),
    "exp_manager.resume_from_checkpoint": Elsewhere("train --run-dir"),
    "exp_manager.max_time_per_run": Elsewhere("train --training.limits.max-hours"),
    "exp_manager.ema.decay": "training.ema.decay",
    "exp_manager.checkpoint_callback_params.mode": NotNeeded("it belongs to monitor"),
    "exp_manager.checkpoint_callback_params.always_save_nemo":
        NotNeeded("python -m asr_jax.export RUN --to nemo writes a .nemo file"),
    "exp_manager.resume_if_exists exp_manager.resume_ignore_no_checkpoint": RESUMING,
    "trainer.enable_checkpointing exp_manager.create_checkpoint_callback": SAVING,
    "trainer.logger trainer.enable_progress_bar exp_manager.create_tensorboard_logger": LOGGING,
    "exp_manager.create_wandb_logger exp_manager.wandb_logger_kwargs.*": SENT,
    "trainer.accelerator": NotNeeded("JAX finds the devices; train --device selects their kind"),
    "trainer.strategy trainer.strategy.* trainer.use_distributed_sampler":
        NotNeeded("every batch is split over all devices (documentation: several-machines)"),
    "trainer.benchmark": NotNeeded("XLA chooses kernels when it compiles"),
    "trainer.deterministic": NotNeeded("a run is equal bit for bit when it is resumed"),
    "trainer.num_sanity_val_steps": NotNeeded("every shape is compiled before the first update"),
    "trainer.check_val_every_n_epoch": Absent("set training.validation.every, in updates", (1,)),
    "trainer.* exp_manager.*": Absent("the trainer has no such setting"),
    "hydra.*": NotNeeded("the folder of the run is run_dir"),
}  # fmt: skip
MODELS: Mapping[str, tuple[Callable[[dict[str, Any], Path], Any], str]] = {
    "ConformerEncoder": (conformer.settings_of_nemo, "conformer_librispeech"),
    "SqueezeformerEncoder": (squeezeformer_nemo.settings_of, "squeezeformer_librispeech"),
    "ConvASREncoder": (quartznet.settings_of, "quartznet_librispeech"),
}


def _section(given: Given, name: str) -> dict[str, Any]:
    """Returns the keys of a section as nested dictionaries."""
    found: dict[str, Any] = {}
    for key in given.named(f"{name}."):
        node, parts = found, key.removeprefix(f"{name}.").split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = given.get(key)
    return found


def _encoder_class(given: Given) -> str:
    return str(given.get(f"{ENCODER}._target_", "")).rpartition(".")[2]


def _recipe(given: Given) -> str:
    name = _encoder_class(given)
    if not name and ("init_from_nemo_model" in given or "model.tokenizer.update_tokenizer" in given):
        return "fastconformer_finetune"
    if name not in MODELS:
        raise UserError(
            f"the encoder is {name or 'not given'}: expected one of {', '.join(MODELS)} in model.encoder._target_"
        )
    if name == "ConformerEncoder" and given.number(f"{ENCODER}.subsampling_factor", 4) == 8:
        return "fastconformer_tdt" if "model.joint._target_" in given else "fastconformer_librispeech"
    return MODELS[name][1]


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    encoder: Any = base.model.encoder
    if name := _encoder_class(given):
        try:
            encoder = replace(MODELS[name][0](_section(given, ENCODER), given.file), remat=encoder.remat)
        except UserError as error:
            field = re.search(r": (\w+) is", str(error))
            raise UserError(f"{error} ({FIELDS.get(field[1], ENCODER) if field else ENCODER})") from error
        front_end = front_end_of(_section(given, "model.preprocessor"), given.file)
        yield _whole(given, "model.encoder", encoder, ENCODER)
        yield from parts("model.encoder", encoder, FIELDS)
        yield _whole(given, "model.front_end", front_end, "model.preprocessor")
        yield from parts("model.front_end", front_end, FIELDS_OF_FRONT_END)
        yield from _heads(given)
    else:
        yield from _initial_model(given)
    yield from _augmentation(given)
    yield from _data(given)
    yield from _tokenizer(given, base)
    yield from _schedule(given, encoder)
    yield from _optimizer(given)
    yield from _trainer(given, base)


def _initial_model(given: Given) -> Iterator[Change | str]:
    """The model of a file that fine-tuning begins with."""
    path = str(given.get("init_from_nemo_model", "the .nemo file (init_from_nemo_model)"))
    if not Path(path).is_file():
        yield f"{path} is not on this machine: the sizes of the recipe are used; migrate where the file is"
        return
    found = model_of(path)
    assert found  # a .nemo file describes itself
    yield Change("model.encoder", found[0], "init_from_nemo_model")
    yield Change("model.front_end", found[1], "init_from_nemo_model")


def _whole(given: Given, field: str, value: Any, *sections: str) -> Change:
    """Returns a change by all keys of sections, whose comment has the class alone."""
    names = [name for each in sections for name in given.named(f"{each}.") if TABLE.row_of(name) == PART]
    return Change(field, value, " ".join(names), [name for name in names if name.endswith("_target_")])


TABLE = Table(ROWS)


def _heads(given: Given) -> Iterator[Change | str]:
    config = {name: _section(given, f"model.{name}") for name in ("decoder", "joint", "decoding", "loss", "aux_ctc")}
    config = {name: each for name, each in config.items() if each}
    if "model.rnnt_reduction" in given:
        config["rnnt_reduction"] = given.get("model.rnnt_reduction")
    heads = heads_of(config, given.file)
    share = given.real("model.aux_ctc.ctc_loss_weight") if len(heads) > 1 else 0.0
    reduction = given.get("model.ctc_reduction") or given.get("model.aux_ctc.ctc_reduction")
    by: Any = "labels" if reduction == "mean_volume" else "utterances"
    rows, fused = given.number(f"{TRAIN}.batch_size"), given.number("model.joint.fused_batch_size") or 0
    for name, head in heads.items():
        if isinstance(head, CTC):
            heads[name] = replace(head, weight_by=by, scale=share or 1.0)
        elif isinstance(head, Transducer):
            split = max((rows or fused) // fused, 1) if fused > 0 else head.split
            heads[name] = replace(head, scale=round(1.0 - share, 6), split=split)
    yield _whole(given, "model.heads", heads, *(f"model.{each}" for each in config))
    for name, head in heads.items():
        yield from parts(f"model.heads.{name}", head, FIELDS_OF_HEADS[name])
        if isinstance(head, Transducer) and head.omega:
            yield (
                "the share of the plain RNN-T loss (omega) is part of every batch's loss, while NeMo draws one of the "
                "two losses for each batch"
            )
    yield Change("model.primary", "transducer" if len(heads) > 1 else "", "model.aux_ctc.ctc_loss_weight")


def _augmentation(given: Given) -> Iterator[Change]:
    made: list[Any] = []
    if num := given.number(f"{SPEC}.rect_masks"):
        bins, frames = given.number(f"{SPEC}.rect_freq", 20), given.number(f"{SPEC}.rect_time", 5)
        made.append(Cutout(num=num, freq_bins=(0, bins), time_frames=(0, frames)))
    frequency, time = given.number(f"{SPEC}.freq_masks"), given.number(f"{SPEC}.time_masks")
    if frequency or time:
        width, bins = given.number(f"{SPEC}.time_width", 0.05), given.number(f"{SPEC}.freq_width", 27)
        masks = SpecAugment.nemo(num_time_masks=time)
        widths = {"max_width_share": width} if width < 1 else {"max_width_share": 1.0, "max_time_frames": int(width)}
        made.append(replace(masks, num_freq_masks=frequency, max_freq_bins=bins, **widths))
    yield _whole(given, "model.augment", tuple(made), SPEC)
    names = "freq_masks=num_freq_masks freq_width=max_freq_bins time_masks=num_time_masks "
    for each in made:
        by_width = "time_width=max_width_share" if each.max_width_share < 1 else "time_width=max_time_frames"
        yield from parts("model.augment.SpecAugment", each, _fields(SPEC, names + by_width))


def _data(given: Given) -> Iterator[Change | str]:
    manifests, duration = f"{TRAIN}.manifest_filepath", f"{TRAIN}.batch_duration"
    if manifests in given:
        yield Change("data.train", given.read(manifests, words), manifests)
    for name, field in ((manifests, "data.train"), ("model.validation_ds.manifest_filepath", "data.validation")):
        if name not in given:
            yield f"{name} is not given: {field} is that of the recipe; set it, or pass --{field}"
    nodes, devices = given.number("trainer.num_nodes", 1), given.get("trainer.devices", 1)
    of_job = str(devices) in ("-1", "auto")
    num = 0 if of_job else nodes * (len(devices) if isinstance(devices, list) else int(devices))
    by = "trainer.devices × trainer.num_nodes"
    yield Change("data.batching.devices", num, by)
    yield Change("data.batching.row_multiple", 1, by)
    if duration in given:
        yield Change("data.batching.budget", given.real(duration), duration)
        yield Change("data.batching.unit", "padded-seconds", duration)
    else:
        rows, key = given.number(f"{TRAIN}.batch_size", 16), f"{TRAIN}.batch_size"
        yield Change("data.batching.budget", float(rows), key)
        yield Change("data.batching.unit", "utterances", key)
        yield Change("data.batching.max_rows", rows, key)
    if of_job:
        yield (
            "a batch has batch_size utterances on each device; NeMo's recipes are for about 2000 utterances per update "
            "(batch_size × devices × accumulate_grad_batches)"
        )


def _tokenizer(given: Given, base: Experiment) -> Iterator[Change | str]:
    folder, tokenizer = given.get("model.tokenizer.dir"), base.data.tokenizer
    if folder:
        tokenizer = replace(tokenizer, kind="sentencepiece", path=f"{folder}/tokenizer.model")
        yield Change("data.tokenizer", tokenizer, "model.tokenizer.dir")
    elif labels := given.get("model.labels") or given.get("model.decoder.vocabulary"):
        tokenizer = replace(tokenizer, kind="characters", alphabet="".join(labels), path="")
        yield Change("data.tokenizer", tokenizer, "model.labels")
    elif tokenizer.kind == "sentencepiece":
        yield f"model.tokenizer.dir is not given: a tokenizer of {tokenizer.vocab_size} labels is trained on data.train"


def _steps(given: Given, stage: str) -> int:
    """Returns the length of a stage of the schedule in updates, which may be given as a share of all updates."""
    every = given.number(f"{SCHED}.max_steps", given.number("trainer.max_steps"))
    return int(given.number(f"{SCHED}.{stage}_steps", given.real(f"{SCHED}.{stage}_ratio") * every))


def _schedule(given: Given, encoder: Any) -> Iterator[Change | str]:
    rate, warmup, hold = given.real(f"{OPTIM}.lr", 1e-3), _steps(given, "warmup"), _steps(given, "hold")
    least, name = given.real(f"{SCHED}.min_lr"), given.get(f"{SCHED}.name", "")
    names = _fields(SCHED, "name=decay min_lr=min_lr") | {"peak_lr": f"{OPTIM}.lr"}
    names["warmup_updates"] = under(SCHED, "warmup_steps warmup_ratio")
    if name == "NoamAnnealing":
        names["peak_lr"] += f" {under(SCHED, 'd_model warmup_steps')}: lr / sqrt(d_model · warmup_steps)"
        width = given.number(f"{SCHED}.d_model", getattr(encoder, "dim", 0))
        if not width:
            raise UserError(f"{SCHED}.name=NoamAnnealing without a width: expected {SCHED}.d_model")
        peak = float(f"{rate * width**-0.5 * max(warmup, 1) ** -0.5:.6g}")
        schedule: Any = WarmupHoldDecay(peak_lr=peak, min_lr=least, warmup_updates=warmup, decay="inverse_sqrt")
    elif name == "CosineAnnealing":
        share = float(f"{least / rate:.6g}")
        names |= {"final_share": f"{SCHED}.min_lr {OPTIM}.lr: min_lr / lr", "min_lr": ""}
        schedule = WarmupHoldDecay(peak_lr=rate, warmup_updates=warmup, decay="cosine", final_share=share)
    elif name == "NoamHoldAnnealing":
        power = given.real(f"{SCHED}.decay_rate", 0.5)
        names |= {"hold_updates": under(SCHED, "hold_steps hold_ratio"), "power": f"{SCHED}.decay_rate"}
        schedule = WarmupHoldDecay(
            peak_lr=rate, min_lr=least, warmup_updates=warmup, hold_updates=hold, decay="noam", power=power
        )
    else:
        schedule = WarmupHoldDecay(peak_lr=rate, min_lr=least, warmup_updates=warmup, decay="none")
        if name:
            del names["decay"]
            yield f"{SCHED}.name {name}: there is no such schedule; the rate stays at its peak. Set optim.schedule"
    yield Change("optim.schedule", schedule)
    yield from parts("optim.schedule", schedule, names)


def _optimizer(given: Given) -> Iterator[Change | str]:
    kind = given.get(f"{OPTIM}.name", "adamw")
    is_known = kind in ("adamw", "adam", "novograd")
    if not is_known:
        yield f"{OPTIM}.name {kind}: there is no such optimizer; AdamW is used"
    b1, b2 = given.get(f"{OPTIM}.betas") or (0.9, 0.999)
    decay = given.real(f"{OPTIM}.weight_decay", 0.01 if kind == "adamw" else 0.0)
    clip_at = given.read("trainer.gradient_clip_val", lambda value: real(value or 0), 0.0)
    fields: dict[str, Any] = {"b1": real(b1), "b2": real(b2), "weight_decay": decay, "clip_at": clip_at}
    if f"{OPTIM}.eps" in given:
        fields["eps"] = given.real(f"{OPTIM}.eps")
    optim = (NovoGrad if kind == "novograd" else AdamW)(decay_factors=EVERYTHING, **fields)
    yield Change("optim", optim, f"{OPTIM}.name" * is_known)
    yield from parts("optim", optim, _fields(OPTIM, "betas=b1 betas=b2 weight_decay=weight_decay eps=eps"))


def _trainer(given: Given, base: Experiment) -> Iterator[Change | str]:
    every = given.number("trainer.val_check_interval", 1.0)
    if float(every) <= 1.0:
        yield Change("training.validation.each_epoch", True, "trainer.val_check_interval")
        yield (
            f"trainer.val_check_interval={every}: validation is at the end of an epoch, and after "
            f"{base.training.validation.every:,} updates (training.validation.every)"
        )
    else:
        yield Change("training.validation.every", int(every), "trainer.val_check_interval")
    if "exp_manager.exp_dir" in given:
        folder, name = given.get("exp_manager.exp_dir"), given.get("exp_manager.name", "")
        yield Change("run_dir", f"{folder}/{name}".rstrip("/"), "exp_manager.exp_dir exp_manager.name")


NEMO = System(
    "nemo",
    "NeMo",
    r"nemo\.collections|exp_manager|speech_to_text_\w+\.py|--config-name|model\.(train_ds|optim|encoder)\.",
    ROWS,
    _recipe,
    _derive,
    (Program("*", "trainer.precision=32 trainer.accumulate_grad_batches=1 exp_manager.ema.decay=0.0"),),
)
