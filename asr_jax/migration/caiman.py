"""Myrtle's CAIMAN-ASR 1.14 (commit 08d60d8), and the sampling modes of its later page on batch sizes (seed 000)."""

from collections.abc import Iterator, Mapping
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
from asr_jax.migration.changes import Change, parts
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.nvidia import AUDIO, FEATURES, FLOAT16, OF_NVIDIA, OF_YAML, manifests, speeds
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, To, numbers, one_of, real, to, truth, under
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.optimizers import NEVER

HEAD, SPEC = "model.heads.transducer", "input_train.spec_augment"
STATISTICS = Absent("front_end needs the statistics: python -m asr_jax.feature_statistics")
DELAY = "--dp_initial_value --dp_final_value --dp_toggle_step --dp_wer_threshold"
STAR = DELAY.replace("--dp", "--star")
TEXTS = f"{AUDIO}.replacements {AUDIO}.remove_tags {AUDIO}.normalize_transcripts"
LEVELS = {
    "identity": "", "scrub": "", "ascii": "ascii.v1", "digit_to_word": "ascii.v1", "lowercase": "english.v1",
    "False": "", "True": "english.v1",
}  # fmt: skip
"""Normalisers of CAIMAN-ASR's levels. Characters outside of the vocabulary are not removed, but counted."""
KENLM = "--decoding.fusion.unit labels --decoding.fusion.kenlm"
HUB = NotNeeded("download the data set (hf download); data.validation reads its Parquet files")


def _longest(value: Any) -> float:
    """Returns the longest duration; MAX_DURATION is what create_config_set_env.sh replaces."""
    return 20.0 if value == "MAX_DURATION" else real(value)


def _limit(value: Any) -> float:
    """Returns a threshold as a log-probability; negative ones are off."""
    return -real(value) if real(value) >= 0 else float("-inf")


ROWS: Mapping[str, Row] = {
    **OF_NVIDIA,
    **OF_YAML,
    "--clip_norm": "optim.clip_at",
    "--sampling_mode --per_gpu_batch_size|PER_GPU_BATCH_SIZE --global_batch_size --num_gpus --num_buckets "
    "--randomize_first_n_epochs --no_amp --rsp_seq_len_freq --rsp_delay --delay_penalty --prob_train_narrowband "
    "--train_manifest_ratios|--train_manifests_ratios --relative_train_manifest_ratios --canary_exponent datasets.* "
    "--prob_background_noise --prob_babble_noise --noise_delay_steps --noise_ramp_steps --noise_initial_low "
    "--noise_initial_high --noise_dataset --use_noise_audio_folder": PART,
    "rnnt.enc_freeze":
        To("optim.freeze_updates", lambda value: (("encoder/.*", NEVER),) * truth(value) + (("rest", 0.0),)),
    "--weights_init_scale": To(f"model.encoder.weight_scale {HEAD}.prediction.weight_scale", real),
    "rnnt.joint_net_lr_factor":
        To("optim.lr_factors", lambda value: (("heads_transducer/output/.*", real(value)), ("rest", 1.0))),
    "PER_GPU_JOINT_BATCH_SIZE": NotNeeded("it follows from the rows and model.heads.transducer.split"),
    **to("training", "--grad_accumulation_batches=accumulate --training_steps=num_updates"),
    **to(HEAD, "--batch_split_factor=split rnnt.joint_n_hid=joint_dim rnnt.joint_dropout=dropout"),
    **to("optim.schedule",
         "--warmup_steps=warmup_updates --hold_steps=hold_updates --half_life_steps=half_life_updates"),
    "--hidden_hidden_bias_scale|--hidden_hidden_bias_scaled": Absent("biases of the recurrent product begin at 0"),
    "--die_if_wer_bad":
        NotNeeded("an update with non-finite values is voided; training.limits.patience ends a run without progress"),
    "--val_batch_size": NotNeeded("validation has batches as large as training"),
    **to("optim", "--beta1=b1 --beta2=b2"),
    "--grad_scaler_lower_bound_log2|--scaler_lbl2": To("training.loss_scale.floor", lambda value: 2.0 ** real(value)),
    "--dali_train_device --dali_val_device --dali_processes_per_cpu": NotNeeded("features are computed on the device"),
    "--fine_tune": NotNeeded("init.path starts a new run from weights"),
    "--ckpt|--checkpoint": "init.path",
    "--allow_partial_checkpoint": To("init.strict", lambda value: not truth(value)),
    "--dont_save_at_the_end": Absent("a run always saves at its end"),
    "--save_frequency": "training.saving.every_updates",
    **to("training.validation", "--val_frequency=every --calculate_loss=loss"),
    "--train_dataset_yaml": NotNeeded("the file is read if it is found"),
    "--read_from_tar": NotNeeded("the format of data is recognised"),
    **to("data", "--dataset_dir|--data_dir=root --n_utterances_only=max_train_utterances --val_audio_dir=validation"),
    "--timestamp --log_verbose_utterance_statistics": NotNeeded("RUN/events.jsonl has all figures"),
    "--max_symbol_per_sample": NotNeeded("an untrained model emits at most max_symbols labels per frame"),
    "--skip_state_dict_check": NotNeeded("the shapes of weights are always checked"),
    "--skip_val_loss": NotNeeded("validation computes error rates alone; training.validation.loss adds the loss"),
    "--turn_off_initial_padding": NotNeeded("windows end with their hop, so that streams and files agree"),
    "--val_final_padding_secs": Absent("validation audio is not extended by silence"),
    "--prob_val_narrowband": Absent("validation audio is not changed; augment writes changed audio"),
    "--inspect_audio": Elsewhere("augment"),
    "--skip_init --called_by_torchrun --local_rank": NotNeeded("one process uses all devices"),
    "--max_inputs_per_batch": NotNeeded("every shape is compiled, and its memory known, before the first update"),
    "--val_from_dir": NotNeeded("the format of data is recognised"),
    "--val_txt_dir": Absent("texts must be beside the audio, with the same names"),
    "--profiler": Elsewhere("train --profile 10:15"),
    "--calculate_emission_latency": Elsewhere("evaluate RUN --latency ALIGNMENT"),
    "--latency_head_offset --latency_tail_offset": Absent("head and tail latencies are not corrected by offsets"),
    "--breakdown_wer": Absent("errors of letter case and punctuation are not counted apart"),
    "--breakdown_chars": NotNeeded("it belongs to --breakdown_wer"),
    "--sr_segment": Elsewhere("evaluate RUN --state-resets", lambda value: f"{value} 3"),
    "--sr_overlap": Absent("it is the second number of evaluate --state-resets", ("3", "3.0")),
    f"{DELAY} {STAR} {TEXTS}": PART,
    "--eos_penalty": f"{HEAD}.penalties.eos",
    "--eos_is_terminal --eos_vad_threshold --eos_decoding --eos_alpha --eos_beta":
        Absent("evaluation has no strategy for an end of the utterance", ("predict",)),
    "--noise_config": NotNeeded("it belongs to the data set of the hub; download it"),
    "--norm_use_global_stats --norm_starting_ratio --norm_ramp_start_step --norm_ramp_end_step": STATISTICS,
    "--norm_over_utterance": NotNeeded("the recipe normalises by the utterance until front_end has statistics"),
    "--use_hugging_face|--use_hf --hugging_face_val_dataset|--hf_val_dataset": HUB,
    "--hugging_face_val_transcript_key|--hf_val_transcript_key "
    "--hugging_face_val_config|--hf_val_config --hugging_face_val_split|--hf_val_split": HUB,
    **to(f"{HEAD}.decoding", "--decoder=kind --temperature=temperature"),
    "--beam_width": f"{HEAD}.decoding.search.beam_width",
    "--beam_prune_score_thresh": To(f"{HEAD}.decoding.search.label_prune_logp", _limit),
    "--beam_prune_topk_thresh": To(f"{HEAD}.decoding.search.token_prune_logp", _limit),
    "--beam_decoder_procs_per_gpu --beam_min_decode_batch_size_per_proc": NotNeeded("the beam runs on the device"),
    "--beam_no_partials --beam_final_emission_thresh": NotNeeded("serve settles words as soon as all hypotheses agree"),
    "--fuzzy_topk_logits": Absent("there is no hardware of Myrtle to imitate"),
    "--keyword_boost_path":
        Absent("there is no file of them: evaluate RUN --decoding.kind beam --decoding.hot-words WORD:WEIGHT …"),
    "--override_ngram_path": Elsewhere(f"evaluate RUN --decoding.kind beam {KENLM}"),
    "--skip_ngram": NotNeeded("without decoding.fusion.kenlm there is none"),
    "--nth_batch_only": Absent("evaluate RUN --max-samples N limits evaluation"),
    # the YAML files
    "user_tokens.*": Elsewhere("tokenizer --user-defined-symbols"),
    **to("data.tokenizer", "tokenizer.sentpiece_model=path tokenizer.sampling=sampling"),
    "tokenizer.labels": NotNeeded("training names characters of texts without a label"),
    "input_val.audio_dataset.standardize_wer": Elsewhere("evaluate RUN --normaliser whisper_english.v1"),
    "input_val.audio_dataset.error_rate": NotNeeded("word and character error rates are both computed"),
    f"{AUDIO}.standardize_wer {AUDIO}.error_rate": NotNeeded("it is for validation"),
    f"{AUDIO}.standardize_text": Absent("texts are normalised by data.tokenizer.normaliser alone"),
    f"{AUDIO}.max_duration": To("data.filters.max_duration_s", _longest),
    f"{AUDIO}.max_transcript_len": "data.filters.max_chars",
    f"{AUDIO}.speed_perturbation.p": Absent("every utterance has a random speed", (1.0,)),
    f"{FEATURES}.stats_path": STATISTICS,
    **to("model.front_end.then.Stack",
         "input_train.frame_splicing.frame_stacking=num input_train.frame_splicing.frame_subsampling=every"),
    under(SPEC, "freq_masks max_freq time_masks max_time"): PART,
    under(SPEC, "min_freq min_time"): Absent("widths begin at 0"),
    **to("model.encoder",
         "rnnt.in_feats=num_mels rnnt.enc_n_hid=dim rnnt.enc_pre_rnn_layers=layers_before "
         "rnnt.enc_post_rnn_layers=layers_after rnnt.enc_stack_time_factor=stack rnnt.enc_dropout=dropout "
         "rnnt.enc_batch_norm=batch_norm"),
    **to(f"{HEAD}.prediction",
         "rnnt.pred_n_hid=dim rnnt.pred_rnn_layers=num_layers rnnt.pred_dropout=dropout "
         "rnnt.pred_batch_norm=batch_norm"),
    "rnnt.joint_apex_transducer rnnt.joint_apex_relu_dropout": NotNeeded("few frames of the joint exist at a time"),
    "rnnt.forget_gate_bias": Absent("it is 1", (1.0,)),
    "rnnt.custom_lstm": NotNeeded("states are passed on without another LSTM"),
    "rnnt.quantize rnnt.enc_rw_dropout rnnt.pred_rw_dropout": Absent("there is no such LSTM"),
    "grad_noise_scheduler.noise_level": Absent("there is no noise on gradients"),
    "grad_noise_scheduler.decay_const grad_noise_scheduler.start_step": NotNeeded("they belong to noise_level"),
    "ngram.ngram_path": Elsewhere(f"evaluate RUN --decoding.kind beam {KENLM}"),
    "ngram.scale_factor": Elsewhere("evaluate RUN --decoding.kind beam --decoding.fusion.lm-weight"),
}  # fmt: skip
OF_EVALUATION: Mapping[str, Row] = {
    "--ckpt|--checkpoint": Elsewhere("import --out RUN"),
    "--val_manifests|VAL_MANIFESTS|--val_tar_files --val_audio_dir --all_val_manifests":
        Elsewhere("evaluate RUN --data", manifests),
    "--val_batch_size": Elsewhere("evaluate RUN --batch-size"),
    "--num_gpus": NotNeeded("evaluation uses all devices"),
    "--dataset_dir|--data_dir --all_dataset_dirs|--all_data_dirs":
        Absent("paths of --data and those in manifests begin in the current folder: run the command in this folder"),
    "--custom_batch_sizes": Absent("sets have the same --batch-size, which does not change the results"),
    "--overwrite_ok --output_dir|OUTPUT_DIR": NotNeeded("the figures are printed, and written with --json OUT"),
    "--calculate_loss": Absent("evaluation computes error rates; validation has the loss (training.validation.loss)"),
    "--n_utterances_only": Elsewhere("evaluate RUN --max-samples"),
    "--decoder": Elsewhere(
        "evaluate RUN --decoding.kind",
        one_of(greedy="greedy", beam="beam --decoding.search.same texts --decoding.max-symbols 8"),
    ),
    "--beam_width": Elsewhere("evaluate RUN --decoding.search.beam-width"),
    "--temperature": Elsewhere("evaluate RUN --decoding.temperature"),
    "--beam_prune_score_thresh": Elsewhere("evaluate RUN --decoding.search.label-prune-logp", _limit),
    "--beam_prune_topk_thresh": Elsewhere("evaluate RUN --decoding.search.token-prune-logp", _limit),
    "--override_ngram_path|ngram.ngram_path": Elsewhere(f"evaluate RUN {KENLM}"),
    "ngram.scale_factor": Elsewhere("evaluate RUN --decoding.fusion.lm-weight"),
}  # fmt: skip
OF_VAL_PY = (
    "--sr_segment 15 --beam_width 4 --temperature 1.4 --beam_prune_score_thresh 0.4 --beam_prune_topk_thresh 1.5"
)
DEFAULTS = (
    "--training_steps 100000 --warmup_steps 1632 --hold_steps 18000 --half_life_steps 10880 --lr 0.004 "
    "--min_lr 0.0004 --weight_decay 0.01 --clip_norm 1.0 --beta1 0.9 --beta2 0.999 --ema 0.999 "
    "--grad_accumulation_batches 8 --batch_split_factor 1 --global_batch_size 1024 --num_gpus 8 --num_buckets 6 "
    "--no_amp false --save_frequency 5000 --val_frequency 1000 --log_frequency 1 --prediction_frequency 1000 "
    "--seed 1 --delay_penalty wer_schedule --canary_exponent 0.75 --prob_background_noise 0.25 "
    "--noise_delay_steps 4896 --noise_ramp_steps 4896 --noise_initial_low 30 --noise_initial_high 60 "
    "--rsp_seq_len_freq 99 0 1 --weights_init_scale 0.5 --model_config configs/testing-1023sp_run.yaml"
)


def _recipe(given: Given) -> str:
    name = str(given.get("--model_config", ""))
    wide, deep = given.number("rnnt.enc_n_hid"), given.number("rnnt.enc_post_rnn_layers")
    if wide:
        return "rnnt_large" if wide > 1024 else "rnnt_testing" if deep < 6 else "rnnt_base"
    return next((f"rnnt_{size}" for size in ("large", "testing") if size in name), "rnnt_base")


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    yield from _batches(given, base)
    yield from _mixing(given)
    yield Change("training.precision", "f32" if given.is_on("--no_amp") else "f16", "--no_amp")
    if not given.is_on("--no_amp"):
        yield FLOAT16
    yield from _penalties(given)
    yield from _normaliser(given)
    lengths = given.read("--rsp_seq_len_freq", numbers, (99, 0, 1))
    usual = {"--warmup_steps": 1632, "--hold_steps": 18_000, "--half_life_steps": 10_880}
    warmup, hold, half_life = (given.number(name, steps) for name, steps in usual.items())
    passing = StatePassing(tuple(map(float, lengths)), after=given.number("--rsp_delay", warmup + hold + 3 * half_life))
    of_delay = "--rsp_delay" if "--rsp_delay" in given else " ".join(usual)
    yield Change("training.pass_states", passing, f"--rsp_seq_len_freq {of_delay}")
    if given.number("--eos_penalty"):
        yield f"--eos_penalty has an effect with the id of the token: set {HEAD}.penalties.eos_id"
    yield from speeds(given)
    yield from _augmentation(given)


def _penalties(given: Given) -> Iterator[Change | str]:
    if given.get("--delay_penalty", "wer_schedule") == "wer_schedule":
        yield from _by_wer(given, "delay", DELAY, (0.0, 0.01, 0.3), "--delay_penalty ")
    else:
        yield Change(f"{HEAD}.penalties.delay", given.real("--delay_penalty"), "--delay_penalty")
        yield Change(f"{HEAD}.penalties.delay_since", Since(), "--delay_penalty")
    if any(name in given for name in STAR.split()):
        yield from _by_wer(given, "star", STAR, (0.75, 1.0, 0.2))
        yield f"the star penalty has an effect with the id of its label: set {HEAD}.penalties.star_id"


def _by_wer(
    given: Given, penalty: str, names: str, usual: tuple[float, float, float], before: str = ""
) -> Iterator[Change]:
    """Yields a penalty that begins with a WER; `usual` has its first value, its last one and the WER."""
    first, last, step, wer = names.split()
    since = Since(given.real(first, usual[0]), given.real(wer, usual[2]), given.number(step))
    yield Change(f"{HEAD}.penalties.{penalty}", given.real(last, usual[1]), before + last)
    yield Change(f"{HEAD}.penalties.{penalty}_since", since, before + names)


def _normaliser(given: Given) -> Iterator[Change | str]:
    replacements, tags, levels = TEXTS.split()
    if not given.named(*TEXTS.split()):
        return
    pairs = [[quote(str(each[end]), safe=" ,;:!?'") for end in ("old", "new")] for each in given.get(replacements, ())]
    names = [f"replace:{old}={new}" for old, new in pairs]
    names += ["no_tags.v1"] * given.read(tags, truth, True)
    level = str(given.get(levels, "lowercase"))
    if level not in LEVELS or level == "digit_to_word":
        yield f"{levels} {level}: there is no such normaliser; {LEVELS.get(level) or 'none'} is used"
    if pairs:
        yield "replacements are made before the normaliser: their texts are those of the manifests"
    names += [LEVELS[level]] if LEVELS.get(level) else []
    yield Change("data.tokenizer.normaliser", "+".join(names) or "none", TEXTS)


def _batches(given: Given, base: Experiment) -> Iterator[Change | str]:
    gpus, accumulated = given.count("--num_gpus", 8), given.count("--grad_accumulation_batches", 8)
    buckets = given.number("--num_buckets", 6)
    split, names = given.count("--batch_split_factor", 1), "--global_batch_size --num_gpus --grad_accumulation_batches"
    every = given.count("--global_batch_size", 1024)
    rows = every // (gpus * accumulated)
    if "--per_gpu_batch_size" in given:
        rows, names = given.number("--per_gpu_batch_size"), "--per_gpu_batch_size"
        every = rows * gpus * accumulated
    rows = max(rows - rows % split, split)
    if (update := rows * gpus * accumulated) != every:
        yield (
            f"{every} utterances per update are no multiple of --num_gpus × --grad_accumulation_batches × "
            f"--batch_split_factor = {gpus * accumulated * split}: an update has {update}"
        )
    seconds = base.data.batching.budget / 8  # the recipe's, of 8 devices
    longest, labels = base.data.filters.max_duration_s, base.data.filters.max_chars
    others: dict[str, Any] = {"devices": gpus, "pessimistic_first": True}
    random = given.number("--randomize_first_n_epochs")
    made = {
        None: lambda: Batching.fixed(rows=rows, num_buckets=buckets, random_epochs=random, **others),
        "fixed": lambda: Batching.fixed(rows=rows, **others),
        "duration": lambda: Batching.duration(seconds=seconds, **others),
        "1D-bucketing": lambda: Batching.bucketing_1d_dyn(num_buckets=buckets, seconds=seconds, **others),
        "1D-bucketing-dyn": lambda: Batching.bucketing_1d_dyn(num_buckets=buckets, seconds=seconds, **others),
        "2D-bucketing": lambda: Batching.bucketing_2d(buckets, memory_gb=70.0, **others),
        "2D-bucketing-fixed": lambda: Batching.bucketing_2d_fixed(buckets, rows=rows, **others),
        "2D-bucketing-singlet": lambda: Batching.bucketing_2d_singlet(
            seconds=longest, labels=labels, rows=rows, **others
        ),
    }
    mode = given.read("--sampling_mode", one_of(**{each: each for each in made if each}))
    yield Change("data.batching", made[mode](), f"--sampling_mode {names}" if mode else f"{names} --num_buckets")
    if mode in ("duration", "1D-bucketing", "1D-bucketing-dyn"):
        yield f"its page names no flag for the seconds of a batch: data.batching.budget is {seconds:g} s per device"
    if mode in ("1D-bucketing", "2D-bucketing", "2D-bucketing-fixed", "2D-bucketing-singlet"):
        yield "its page names no flag for the edges of the buckets: set data.batching.edges_s, and edges_labels for 2D"
    if mode == "2D-bucketing":
        yield "data.batching.budget is 70 GB of memory per device, for its page's A100 of 80 GB"


def _mixing(given: Given) -> Iterator[Change | str]:
    if sets := sorted(given.named("datasets.")):
        manifests = [name for name in sets if name.endswith(".manifest")]
        weights = tuple(given.real(name.replace(".manifest", ".weight"), 1.0) for name in manifests)
        yield Change("data.train", tuple(given.get(name) for name in manifests), " ".join(manifests))
        yield Change("data.mixing", Mixing("relative", weights), " ".join(sets))
        return
    for name in ("--train_manifest_ratios", "--relative_train_manifest_ratios"):
        if name in given:
            kind: Any = "relative" if "relative" in name else "absolute"
            yield Change("data.mixing", Mixing(kind, tuple(map(float, given.read(name, numbers)))), name)
            return
    if given.get("--sampling_mode") == "duration":
        yield "CAIMAN-ASR mixes manifests with the canary exponent 0.75; batches of equal duration are not mixed"
    elif (exponent := given.real("--canary_exponent", 0.75)) > 0:
        yield Change("data.mixing", Mixing("temperature", exponent=exponent), "--canary_exponent")


def _augmentation(given: Given) -> Iterator[Change | str]:
    made: list[Any] = []
    noise, folder = given.real("--prob_background_noise"), given.get("--noise_dataset", "")
    first = (given.real("--noise_initial_low", 30.0), given.real("--noise_initial_high", 60.0))
    delay, duration = given.number("--noise_delay_steps", 4896), given.number("--noise_ramp_steps", 4896)
    ramp = Ramp(first=first, begin_updates=delay, ramp_updates=duration)
    if noise and given.is_on("--use_noise_audio_folder") and folder:
        made.append(BackgroundNoise(probability=noise, folder=folder, snr_db=ramp))
    elif noise:
        yield (
            f"--prob_background_noise={noise:g}: there is no noise without recordings: add "
            f"BackgroundNoise(probability={noise:g}, folder=…) to model.augment"
        )
    if babble := given.real("--prob_babble_noise"):
        made.append(Babble(probability=babble, snr_db=replace(ramp, last=(15.0, 30.0))))
    if narrow := given.real("--prob_train_narrowband"):
        made.append(NarrowBand(probability=narrow))
        yield "NarrowBand is drawn for each utterance, not for each batch"
    fields: dict[str, Any] = {
        ours: given.number(f"{SPEC}.{theirs}") for ours, theirs in MASKS.items() if f"{SPEC}.{theirs}" in given
    }
    longest = given.number(f"{SPEC}.max_time", 0.03)
    fields |= {"max_width_share": longest} if longest < 1 else {"max_width_share": 1.0, "max_time_frames": longest}
    made.append(replace(SpecAugment.rnnt(), **fields))
    yield Change("model.augment", tuple(made))
    for each in made:
        yield from parts(f"model.augment.{type(each).__name__}", each, ORIGINS[type(each)])
    width = "max_width_share" if longest < 1 else "max_time_frames"
    yield from parts("model.augment.SpecAugment", made[-1], {width: f"{SPEC}.max_time"})


MASKS = {"num_freq_masks": "freq_masks", "max_freq_bins": "max_freq", "num_time_masks": "time_masks"}
RAMP = "--noise_delay_steps --noise_ramp_steps --noise_initial_low --noise_initial_high"
ORIGINS: Mapping[type, dict[str, str]] = {
    BackgroundNoise: {
        "probability": "--prob_background_noise",
        "folder": "--noise_dataset --use_noise_audio_folder",
        "snr_db": RAMP,
    },
    Babble: {"probability": "--prob_babble_noise", "snr_db": RAMP},
    NarrowBand: {"probability": "--prob_train_narrowband"},
    SpecAugment: {ours: f"{SPEC}.{theirs}" for ours, theirs in MASKS.items()},
}
"""Names of the fields of the augmentations."""
CAIMAN = System(
    "caiman",
    "CAIMAN-ASR",
    r"(?m)caiman|--sampling_mode|^rnnt:|enc_pre_rnn_layers|--batch_split_factor|half_life_steps|-\d+sp(_run)?\.yaml",
    ROWS,
    _recipe,
    _derive,
    (
        Program("val.sh, val.py, val_multiple.sh, val_multiple.py", OF_VAL_PY, "evaluate RUN", OF_EVALUATION),
        Program("train.sh, train.py", DEFAULTS),
    ),
)
