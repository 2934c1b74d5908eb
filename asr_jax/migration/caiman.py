"""Myrtle's CAIMAN-ASR 1.14 (commit 08d60d8), and the sampling modes of its later page on batch sizes (seed 000)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from asr_jax.audio.distort import Babble, BackgroundNoise, NarrowBand
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.mixing import Mixing
from asr_jax.losses.transducer import Since
from asr_jax.migration.engine import Change, Given, Program, System
from asr_jax.migration.rows import (
    PART,
    Absent,
    Elsewhere,
    NotNeeded,
    Table,
    To,
    numbers,
    real,
    text,
    truth,
    words,
)
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.optimizers import NEVER

HEAD, SPEC = "model.heads.transducer", "input_train.spec_augment"
AUDIO, FEATURES = "input_train.audio_dataset", "input_train.filterbank_features"
STATISTICS = Absent("front_end needs the statistics: python -m asr_jax.feature_statistics")
FILE = NotNeeded("the file is one of the sources")
HUB = NotNeeded("download the data set (hf download); data.validation reads its Parquet files")
EOS = "evaluation has no strategy for an end of the utterance"
BEAM = "evaluate RUN --decoding.{}"
LEVELS = {
    "identity": "", "scrub": "", "ascii": "ascii.v1", "digit_to_word": "ascii.v1", "lowercase": "english.v1",
}  # fmt: skip
"""Normalisers of CAIMAN-ASR's levels. Characters outside of the vocabulary are not removed, but counted."""
OF_LR = "an update with non-finite values is voided, and training.limits.patience ends a run without progress"


def _longest(value: Any) -> float:
    """Returns the longest duration; MAX_DURATION is what create_config_set_env.sh replaces."""
    return 20.0 if value == "MAX_DURATION" else real(value)


def _limit(value: Any) -> float:
    """Returns a threshold as a log-probability; negative ones are off."""
    return -real(value) if real(value) >= 0 else float("-inf")


TABLE = Table({
    "--sampling_mode": PART,
    "--per_gpu_batch_size PER_GPU_BATCH_SIZE": PART,
    "PER_GPU_JOINT_BATCH_SIZE": NotNeeded("it follows from the rows and model.heads.transducer.split"),
    "--grad_accumulation_batches": To("training.accumulate"),
    "--batch_split_factor": To(f"{HEAD}.split"),
    "--global_batch_size": PART,
    "--num_gpus": PART,
    "--num_buckets": PART,
    "--randomize_first_n_epochs": PART,
    "--training_steps": To("training.num_updates"),
    "--warmup_steps": To("optim.schedule.warmup_updates"),
    "--hold_steps": To("optim.schedule.hold_updates"),
    "--half_life_steps": To("optim.schedule.half_life_updates"),
    "--no_cudnn_benchmark": NotNeeded("XLA chooses kernels when it compiles"),
    "--no_amp": PART,
    "--seed": To("seed"),
    "--weights_init_scale": PART,
    "--hidden_hidden_bias_scale --hidden_hidden_bias_scaled": Absent("biases of the recurrent product begin at 0"),
    "--die_if_wer_bad": NotNeeded(OF_LR),
    "--val_batch_size": NotNeeded("validation has batches as large as training"),
    "--lr --learning_rate": To("optim.schedule.peak_lr", real),
    "--min_lr --min_learning_rate": To("optim.schedule.min_lr", real),
    "--weight_decay": To("optim.weight_decay", real),
    "--clip_norm": To("optim.clip_at", real),
    "--beta1": To("optim.b1", real),
    "--beta2": To("optim.b2", real),
    "--ema": To("training.ema.decay", real),
    "--grad_scaler_lower_bound_log2 --scaler_lbl2": To("training.loss_scale.floor", lambda value: 2.0 ** real(value)),
    "--dali_train_device --dali_val_device --dali_processes_per_cpu": NotNeeded("features are computed on the device"),
    "--resume": NotNeeded("training into the folder of a run continues it; --fresh begins another one"),
    "--fine_tune": NotNeeded("init.path starts a new run from weights"),
    "--ckpt --checkpoint": To("init.path", text),
    "--allow_partial_checkpoint": To("init.strict", lambda value: not truth(value)),
    "--dont_save_at_the_end": Absent("a run always saves at its end"),
    "--save_frequency": To("training.saving.every_updates"),
    "--val_frequency": To("training.validation.every"),
    "--log_frequency": To("training.log_every"),
    "--prediction_frequency": To("training.validation.sample_every"),
    "--model_config": FILE,
    "--train_manifests --train_tar_files": To("data.train", words),
    "--train_dataset_yaml": FILE,
    "--train_manifest_ratios --train_manifests_ratios": PART,
    "--relative_train_manifest_ratios": PART,
    "--canary_exponent": PART,
    "--val_manifests --val_tar_files": To("data.validation", words),
    "--read_from_tar": NotNeeded("the format of data is recognised"),
    "--dataset_dir --data_dir": To("data.root", text),
    "--output_dir": To("run_dir", text),
    "--log_file --timestamp --log_verbose_utterance_statistics": NotNeeded("RUN/events.jsonl has all figures"),
    "--max_symbol_per_sample": NotNeeded("an untrained model emits at most max_symbols labels per frame"),
    "--rsp_seq_len_freq": PART,
    "--rsp_delay": PART,
    "--skip_state_dict_check": NotNeeded("the shapes of weights are always checked"),
    "--prob_train_narrowband": PART,
    "--skip_val_loss": NotNeeded("validation computes error rates alone; training.validation.loss adds the loss"),
    "--turn_off_initial_padding": NotNeeded("windows end with their hop, so that streams and files agree"),
    "--val_final_padding_secs": Absent("validation audio is not extended by silence"),
    "--prob_val_narrowband": Absent("validation audio is not changed; augment writes changed audio"),
    "--inspect_audio": Elsewhere("augment"),
    "--n_utterances_only": To("data.max_train_utterances"),
    "--skip_init --called_by_torchrun --local_rank": NotNeeded("one process uses all devices"),
    "--max_inputs_per_batch": NotNeeded("every shape is compiled, and its memory known, before the first update"),
    "--val_from_dir": NotNeeded("the format of data is recognised"),
    "--val_audio_dir": To("data.validation", words),
    "--val_txt_dir": Absent("texts must be beside the audio, with the same names"),
    "--profiler": Elsewhere("train --profile 10:15"),
    "--calculate_emission_latency": Elsewhere("evaluate RUN --latency ALIGNMENT"),
    "--latency_head_offset --latency_tail_offset": Absent("head and tail latencies are not corrected by offsets"),
    "--breakdown_wer": Elsewhere("evaluate RUN --by"),
    "--breakdown_chars": Absent("--by groups utterances, not characters"),
    "--sr_segment": Elsewhere("evaluate RUN --state-resets"),
    "--sr_overlap": NotNeeded("it is the second number of evaluate --state-resets"),
    "--delay_penalty": PART,
    **{
        f"--{penalty}_{name}": PART
        for penalty in ("dp", "star")
        for name in ("initial_value", "final_value", "toggle_step", "wer_threshold")
    },
    "--eos_penalty": To(f"{HEAD}.penalties.eos", real),
    "--eos_is_terminal --eos_vad_threshold --eos_decoding --eos_alpha --eos_beta": Absent(EOS, ("predict",)),
    "--prob_background_noise": PART,
    "--prob_babble_noise": PART,
    "--noise_delay_steps": PART,
    "--noise_ramp_steps": PART,
    "--noise_initial_low": PART,
    "--noise_initial_high": PART,
    "--noise_dataset": PART,
    "--noise_config": NotNeeded("it belongs to the data set of the hub; download it"),
    "--use_noise_audio_folder": PART,
    "--norm_use_global_stats --norm_starting_ratio --norm_ramp_start_step --norm_ramp_end_step": STATISTICS,
    "--norm_over_utterance": NotNeeded("the recipe normalises by the utterance until front_end has statistics"),
    "--use_hugging_face --use_hf --hugging_face_val_dataset --hf_val_dataset --hugging_face_val_config --hf_val_config":
        HUB,
    "--hugging_face_val_split --hf_val_split --hugging_face_val_transcript_key --hf_val_transcript_key": HUB,
    "--decoder": To(f"{HEAD}.decoding.kind", text),
    "--beam_width": To(f"{HEAD}.decoding.search.beam_width"),
    "--temperature": To(f"{HEAD}.decoding.temperature", real),
    "--beam_prune_score_thresh": To(f"{HEAD}.decoding.search.label_prune_logp", _limit),
    "--beam_prune_topk_thresh": To(f"{HEAD}.decoding.search.token_prune_logp", _limit),
    "--beam_decoder_procs_per_gpu --beam_min_decode_batch_size_per_proc": NotNeeded("the beam runs on the device"),
    "--beam_no_partials --beam_final_emission_thresh": NotNeeded("serve settles words as soon as all hypotheses agree"),
    "--fuzzy_topk_logits": Absent("there is no hardware of Myrtle to imitate"),
    "--keyword_boost_path": Elsewhere(BEAM.format("fusion.hot-words")),
    "--override_ngram_path": To(f"{HEAD}.decoding.fusion.kenlm", text),
    "--skip_ngram": NotNeeded("without decoding.fusion.kenlm there is none"),
    "--cpu": Elsewhere("evaluate RUN --device cpu"),
    "--calculate_loss": To("training.validation.loss", truth),
    "--nth_batch_only": Absent("evaluate RUN --max-samples N limits evaluation"),
    # the YAML files
    "user_tokens.*": Elsewhere("tokenizer --user-defined-symbols"),
    "tokenizer.sentpiece_model": To("data.tokenizer.path", text),
    "tokenizer.labels": NotNeeded("training names characters of texts without a label"),
    "tokenizer.sampling": To("data.tokenizer.sampling", real),
    "input_val.audio_dataset.standardize_wer": Elsewhere("evaluate RUN --normaliser whisper_english.v1"),
    "input_val.audio_dataset.error_rate": NotNeeded("word and character error rates are both computed"),
    "input_val.*": NotNeeded("validation uses the front-end of training without augmentation, and no filters"),
    f"{AUDIO}.sample_rate {FEATURES}.sample_rate": To("model.front_end.rate_hz"),
    f"{AUDIO}.trim_silence": To("data.trim_db", lambda value: 60.0 if truth(value) else 0.0),
    f"{AUDIO}.normalize_transcripts": PART,
    f"{AUDIO}.standardize_wer {AUDIO}.error_rate": NotNeeded("it is for validation"),
    f"{AUDIO}.standardize_text": Absent("texts are normalised by data.tokenizer.normaliser alone"),
    f"{AUDIO}.replacements": PART,
    f"{AUDIO}.remove_tags": PART,
    f"{AUDIO}.max_duration": To("data.filters.max_duration_s", _longest),
    f"{AUDIO}.min_duration": To("data.filters.min_duration_s", real),
    f"{AUDIO}.max_transcript_len": To("data.filters.max_chars"),
    f"{AUDIO}.speed_perturbation.min_rate": PART,
    f"{AUDIO}.speed_perturbation.max_rate": PART,
    f"{AUDIO}.speed_perturbation.p": Absent("every utterance has a random speed", (1.0,)),
    f"{FEATURES}.normalize": Absent("the front-end normalises each bin", ("per_feature",)),
    f"{FEATURES}.window_size": To("model.front_end.window_ms", lambda value: 1000 * real(value)),
    f"{FEATURES}.window_stride": To("model.front_end.hop_ms", lambda value: 1000 * real(value)),
    f"{FEATURES}.window": Absent("the front-end has a Hann window", ("hann",)),
    f"{FEATURES}.n_fft": To("model.front_end.fft_length"),
    f"{FEATURES}.n_filt": To("model.front_end.num_mels"),
    f"{FEATURES}.dither": To("model.front_end.dither", real),
    f"{FEATURES}.stats_path": STATISTICS,
    "input_train.frame_splicing.frame_stacking": To("model.front_end.then.Stack.num"),
    "input_train.frame_splicing.frame_subsampling": To("model.front_end.then.Stack.every"),
    **{f"{SPEC}.{name}": PART for name in ("freq_masks", "max_freq", "time_masks", "max_time")},
    **{f"{SPEC}.{name}": Absent("widths begin at 0") for name in ("min_freq", "min_time")},
    "rnnt.in_feats": To("model.encoder.num_mels"),
    "rnnt.enc_n_hid": To("model.encoder.dim"),
    "rnnt.enc_pre_rnn_layers": To("model.encoder.layers_before"),
    "rnnt.enc_post_rnn_layers": To("model.encoder.layers_after"),
    "rnnt.enc_stack_time_factor": To("model.encoder.stack"),
    "rnnt.enc_dropout": To("model.encoder.dropout", real),
    "rnnt.enc_batch_norm": To("model.encoder.batch_norm", truth),
    "rnnt.enc_freeze": PART,
    "rnnt.pred_n_hid": To(f"{HEAD}.prediction.dim"),
    "rnnt.pred_rnn_layers": To(f"{HEAD}.prediction.num_layers"),
    "rnnt.pred_dropout": To(f"{HEAD}.prediction.dropout", real),
    "rnnt.pred_batch_norm": To(f"{HEAD}.prediction.batch_norm", truth),
    "rnnt.joint_n_hid": To(f"{HEAD}.joint_dim"),
    "rnnt.joint_dropout": To(f"{HEAD}.dropout", real),
    "rnnt.joint_net_lr_factor": PART,
    "rnnt.joint_apex_transducer rnnt.joint_apex_relu_dropout": NotNeeded("few frames of the joint exist at a time"),
    "rnnt.forget_gate_bias": Absent("it is 1", (1.0,)),
    "rnnt.custom_lstm": NotNeeded("states are passed on without another LSTM"),
    "rnnt.quantize rnnt.enc_rw_dropout rnnt.pred_rw_dropout": Absent("there is no such LSTM"),
    "grad_noise_scheduler.noise_level": Absent("there is no noise on gradients"),
    "grad_noise_scheduler.decay_const grad_noise_scheduler.start_step": NotNeeded("they belong to noise_level"),
    "ngram.ngram_path": Elsewhere(BEAM.format("fusion.unit labels --decoding.fusion.kenlm")),
    "ngram.scale_factor": Elsewhere(BEAM.format("fusion.lm-weight")),
    "datasets.*": PART,
})  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "--training_steps": 100_000, "--warmup_steps": 1632, "--hold_steps": 18_000, "--half_life_steps": 10_880,
    "--lr": 4e-3, "--min_lr": 4e-4, "--weight_decay": 1e-2, "--clip_norm": 1.0, "--beta1": 0.9, "--beta2": 0.999,
    "--ema": 0.999, "--grad_accumulation_batches": 8, "--batch_split_factor": 1, "--global_batch_size": 1024,
    "--num_gpus": 8, "--num_buckets": 6, "--no_amp": False, "--save_frequency": 5000, "--val_frequency": 1000,
    "--log_frequency": 1, "--prediction_frequency": 1000, "--seed": 1, "--delay_penalty": "wer_schedule",
    "--prob_background_noise": 0.25, "--noise_delay_steps": 4896, "--noise_ramp_steps": 4896, "--noise_initial_low": 30,
    "--noise_initial_high": 60, "--rsp_seq_len_freq": "99 0 1", "--weights_init_scale": 0.5,
    "--model_config": "configs/testing-1023sp_run.yaml",
}  # fmt: skip


def _recipe(given: Given) -> str:
    name = str(given.get("--model_config", ""))
    wide, deep = given.number("rnnt.enc_n_hid"), given.number("rnnt.enc_post_rnn_layers")
    if wide:
        return "rnnt_large" if wide > 1024 else "rnnt_testing" if deep < 6 else "rnnt_base"
    return next((f"rnnt_{size}" for size in ("large", "testing") if size in name), "rnnt_base")


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    yield from _batches(given, base)
    yield from _mixing(given)
    yield Change("training.precision", "f32" if given.read("--no_amp", truth, False) else "f16", ("--no_amp",))
    if not given.read("--no_amp", truth, False):
        yield "bf16 is as fast as float16 and needs no scaling of the loss: --training.precision bf16"
    yield from _penalties(given)
    yield from _normaliser(given)
    if "--weights_init_scale" in given:
        scale = given.read("--weights_init_scale", float)
        yield Change("model.encoder.weight_scale", scale, ("--weights_init_scale",))
        yield Change(f"{HEAD}.prediction.weight_scale", scale, ("--weights_init_scale",))
    lengths = given.read("--rsp_seq_len_freq", numbers, (99, 0, 1))
    half_lives = given.number("--warmup_steps", 1632) + given.number("--hold_steps", 18_000)
    after = given.number("--rsp_delay", half_lives + 3 * given.number("--half_life_steps", 10_880))
    passing = StatePassing(tuple(map(float, lengths)), after=after)
    names: tuple[str, ...] = ("--rsp_seq_len_freq", "--rsp_delay")
    if "--rsp_delay" not in given:
        names = ("--rsp_seq_len_freq", "--warmup_steps", "--hold_steps", "--half_life_steps")
    yield Change("training.pass_states", passing, names, ", ")
    if "rnnt.joint_net_lr_factor" in given:
        rules = (("heads_transducer/output/.*", given.read("rnnt.joint_net_lr_factor", float)), ("rest", 1.0))
        yield Change("optim.lr_factors", rules, ("rnnt.joint_net_lr_factor",))
    if given.read("rnnt.enc_freeze", truth, False):
        yield Change("optim.freeze_updates", (("encoder/.*", NEVER), ("rest", 0.0)), ("rnnt.enc_freeze",))
    if given.number(f"{HEAD}.penalties.eos") or given.number("--eos_penalty"):
        yield f"--eos_penalty has an effect with the id of the token: set {HEAD}.penalties.eos_id"
    rates = tuple(f"{AUDIO}.speed_perturbation.{name}" for name in ("min_rate", "max_rate"))
    if rates[0] in given:  # DALI multiplies durations by the rate
        slow, fast = 1 / given.number(rates[1], 1.15), 1 / given.number(rates[0], 0.85)
        yield Change("data.speeds", ((slow + fast) / 2,), rates, ", ")
        yield Change("data.speed_jitter", (fast - slow) / 2, rates, ", ")
    yield from _augmentation(given)


def _penalties(given: Given) -> Iterator[Change | str]:
    place, delay = f"{HEAD}.penalties", given.get("--delay_penalty", "wer_schedule")
    if delay == "wer_schedule":
        names, value = _of_schedule("dp"), given.read("--dp_final_value", float, 0.01)
        yield Change(f"{place}.delay", value, ("--delay_penalty", names[1]), ", ")
        yield Change(
            f"{place}.delay_since", _since(given, "dp", before=0.0, wer=0.3), ("--delay_penalty", *names), ", "
        )
    else:
        yield Change(f"{place}.delay", given.read("--delay_penalty", float), ("--delay_penalty",))
        yield Change(f"{place}.delay_since", Since(), ("--delay_penalty",))
    if any(name in given for name in _of_schedule("star")):
        names = _of_schedule("star")
        yield Change(f"{place}.star", given.read("--star_final_value", float, 1.0), names, ", ")
        yield Change(f"{place}.star_since", _since(given, "star", before=0.75, wer=0.2), names, ", ")
        yield f"the star penalty has an effect with the id of its label: set {place}.star_id"


def _of_schedule(penalty: str) -> tuple[str, ...]:
    return tuple(f"--{penalty}_{name}" for name in ("initial_value", "final_value", "toggle_step", "wer_threshold"))


def _since(given: Given, penalty: str, *, before: float, wer: float) -> Since:
    first, _, step, threshold = _of_schedule(penalty)
    return Since(given.read(first, float, before), given.read(threshold, float, wer), given.number(step))


def _normaliser(given: Given) -> Iterator[Change | str]:
    keys = tuple(f"{AUDIO}.{name}" for name in ("replacements", "remove_tags", "normalize_transcripts"))
    if not any(key in given for key in keys):
        return
    pairs = [
        tuple(quote(str(each[end]), safe=" ,;:!?'") for end in ("old", "new")) for each in given.get(keys[0]) or ()
    ]
    names = [f"replace:{old}={new}" for old, new in pairs]
    names += ["no_tags.v1"] * given.read(keys[1], truth, True)
    level = given.get(keys[2], "lowercase")
    if level not in LEVELS or level == "digit_to_word":
        yield f"{keys[2]} {level}: there is no such normaliser; {LEVELS.get(level) or 'none'} is used"
    if pairs:
        yield "replacements are made before the normaliser: their texts are those of the manifests"
    names += [LEVELS[level]] if LEVELS.get(level) else []
    yield Change("data.tokenizer.normaliser", "+".join(names) or "none", keys, ", ")


def _batches(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, mode = given.number("--num_gpus", 8), given.get("--sampling_mode")
    buckets = given.number("--num_buckets", 6)
    names: tuple[str, ...] = ("--global_batch_size", "--num_gpus", "--grad_accumulation_batches")
    rows = given.number("--global_batch_size", 1024) // (gpus * given.number("--grad_accumulation_batches", 8))
    if "--per_gpu_batch_size" in given:
        rows, names = given.number("--per_gpu_batch_size"), ("--per_gpu_batch_size",)
    rows = max(rows - rows % given.number("--batch_split_factor", 1), given.number("--batch_split_factor", 1))
    seconds = base.data.batching.budget / 8  # the recipe's, of 8 devices
    others: dict[str, Any] = {"devices": gpus, "pessimistic_first": True}
    made = {
        None: lambda: Batching.fixed(
            rows=rows, num_buckets=buckets, random_epochs=given.number("--randomize_first_n_epochs"), **others
        ),
        "fixed": lambda: Batching.fixed(rows=rows, **others),
        "duration": lambda: Batching.duration(seconds=seconds, **others),
        "1D-bucketing": lambda: Batching.bucketing_1d_dyn(num_buckets=buckets, seconds=seconds, **others),
        "1D-bucketing-dyn": lambda: Batching.bucketing_1d_dyn(num_buckets=buckets, seconds=seconds, **others),
        "2D-bucketing": lambda: Batching.bucketing_2d(buckets, memory_gb=70.0, **others),
        "2D-bucketing-fixed": lambda: Batching.bucketing_2d_fixed(buckets, rows=rows, **others),
        "2D-bucketing-singlet": lambda: Batching.bucketing_2d_singlet(
            seconds=base.data.filters.max_duration_s, labels=base.data.filters.max_chars, rows=rows, **others
        ),
    }
    if mode not in made:
        known = ", ".join(str(each) for each in made if each)
        yield f"--sampling_mode {mode} is not known (expected one of {known}): batches have equal numbers of rows"
        mode = None
    shown = ("--sampling_mode", *names) if mode else (*names, "--num_buckets")
    yield Change("data.batching", made[mode](), shown, ", ")
    if mode in ("duration", "1D-bucketing", "1D-bucketing-dyn"):
        yield f"its page names no flag for the seconds of a batch: data.batching.budget is {seconds:g} s per device"
    if mode in ("1D-bucketing", "2D-bucketing", "2D-bucketing-fixed", "2D-bucketing-singlet"):
        yield "its page names no flag for the edges of the buckets: set data.batching.edges_s, and edges_labels for 2D"
    if mode == "2D-bucketing":
        yield "data.batching.budget is 70 GB of memory per device, for its page's A100 of 80 GB"


def _mixing(given: Given) -> Iterator[Change | str]:
    sets = sorted(name for name in given.values if name.startswith("datasets."))
    if sets:
        manifests = [name for name in given.values if re.fullmatch(r"datasets\..+\.manifest", name)]
        weights = [given.number(name.replace(".manifest", ".weight"), 1) for name in manifests]
        yield Change("data.train", tuple(given.get(name) for name in manifests), tuple(manifests), ", ")
        yield Change("data.mixing", Mixing("relative", tuple(map(float, weights))), tuple(sets), ", ")
    elif "--train_manifest_ratios" in given:
        weights = given.read("--train_manifest_ratios", numbers)
        yield Change("data.mixing", Mixing("absolute", tuple(map(float, weights))), ("--train_manifest_ratios",))
    elif "--relative_train_manifest_ratios" in given:
        weights = given.read("--relative_train_manifest_ratios", numbers)
        yield Change(
            "data.mixing", Mixing("relative", tuple(map(float, weights))), ("--relative_train_manifest_ratios",)
        )
    elif given.get("--sampling_mode") == "duration":
        yield "CAIMAN-ASR mixes manifests with the canary exponent 0.75; batches of equal duration are not mixed"
    elif (exponent := given.read("--canary_exponent", float, 0.75)) > 0:
        yield Change("data.mixing", Mixing("temperature", exponent=exponent), ("--canary_exponent",))


def _augmentation(given: Given) -> Iterator[Change | str]:
    made: list[Any] = []
    noise, folder = given.read("--prob_background_noise", float, 0.0), given.get("--noise_dataset", "")
    ramp = {
        "begin_updates": given.number("--noise_delay_steps", 4896),
        "ramp_updates": given.number("--noise_ramp_steps", 4896),
    }
    first = (given.read("--noise_initial_low", float, 30.0), given.read("--noise_initial_high", float, 60.0))
    if noise and given.read("--use_noise_audio_folder", truth, False) and folder:
        made.append(BackgroundNoise(probability=noise, folder=folder, snr_db=Ramp(first=first, **ramp)))
    elif noise:
        yield f"background noise ({noise:g} of the utterances) needs recordings: add BackgroundNoise(folder=…)"
    if babble := given.read("--prob_babble_noise", float, 0.0):
        made.append(Babble(probability=babble, snr_db=Ramp(first=first, last=(15.0, 30.0), **ramp)))
    if narrow := given.read("--prob_train_narrowband", float, 0.0):
        made.append(NarrowBand(probability=narrow))
        yield "NarrowBand is drawn for each utterance, not for each batch"
    names = {"freq_masks": "num_freq_masks", "max_freq": "max_freq_bins", "time_masks": "num_time_masks"}
    fields: dict[str, Any] = {
        ours: given.number(f"{SPEC}.{theirs}") for theirs, ours in names.items() if f"{SPEC}.{theirs}" in given
    }
    longest = given.number(f"{SPEC}.max_time", 0.03)
    fields |= {"max_width_share": longest} if longest < 1 else {"max_width_share": 1.0, "max_time_frames": longest}
    made.append(replace(SpecAugment.rnnt(), **fields))
    given_names = tuple(name for name in given.values if name.startswith((SPEC, "--prob_")))
    yield Change("model.augment", tuple(made), given_names, ", ")


CAIMAN = System(
    "caiman",
    "CAIMAN-ASR",
    r"(?m)caiman|--sampling_mode|^rnnt:|enc_pre_rnn_layers|--batch_split_factor|half_life_steps|-\d+sp(_run)?\.yaml",
    TABLE,
    _recipe,
    _derive,
    (
        Program(r"val(_multiple)?\.(sh|py)", command="evaluate RUN"),
        Program(r"train\.(sh|py)", DEFAULTS),
    ),
)
