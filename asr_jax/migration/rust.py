"""The Rust trainer on Burn (RustedBytes/w2v-bert-uk at commit adec09e, src/bin/train.rs; seed 003)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from asr_jax.audio.distort import Gain, UniformNoise
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, model_of
from asr_jax.core.errors import UserError
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import Enhancement
from asr_jax.migration.changes import Change, parts
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Row, To, one_of, to, truth, words
from asr_jax.models.conformer import PARAFORMER, Conformer
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.optimizers import EVERYTHING
from asr_jax.optim.schedules import InverseEpoch, WarmupHoldDecay

RECIPES = {
    "squeezeformer": "squeezeformer_rust", "zipformer": "zipformer_rust", "paraformer": "paraformer_rust",
    "w2v_bert": "w2v_bert_finetune",
}  # fmt: skip
UNITS = {
    "samples": ("utterances", 1), "frames": ("frames", 1), "padded-frames": ("padded-frames", 1),
    "feature-values": ("feature-values", 1), "values": ("feature-values", 1), "duration-ms": ("seconds", 1000),
    "padded-duration-ms": ("padded-seconds", 1000),
}  # fmt: skip
"""Unit of `data.batching` and the number by which the budget is divided."""
PEAKS = {"squeezeformer": 3e-4, "zipformer": 1e-3, "paraformer": 1e-3, "w2v_bert": 1e-4}


def _same(command: str, names: str) -> dict[str, Row]:
    """Returns rows of flags that a command of this package has with the same names."""
    return {f"--{name}": Elsewhere(f"{command} --{name}") for name in names.split()}


ROWS: Mapping[str, Row] = {
    "--architecture --zipformer --paraformer --paraformer-enhanced --w2v-bert --variant --d-model --num-layers "
    "--num-heads --input-dim --w2v-hf-model-dir --w2v-hf-load-weights --vocab-size --blank-id --batch-size "
    "--adaptive-batch-unit --adaptive-batch-budget --adaptive-batch-max-samples --device-indices --sort-by-length-desc "
    "--sort-buffer-size --spec-time-masks --spec-time-mask-max-frames --spec-freq-masks --spec-freq-mask-max-bins "
    "--waveform-gain-min-db --waveform-gain-max-db --waveform-noise-std --learning-rate --lr-warmup-steps "
    "--lr-hold-steps --lr-decay-steps --lr-warmup-epochs|--warmup-epochs --lr-hold-epochs|--hold-epochs "
    "--lr-decay-exponent|--decay-exponent --lr-min --gradient-clip-norm --gradient-clip-value --val-beam-width "
    "--val-n-best --val-lm-path --val-lm-weight --val-lm-word-bonus --val-lm-no-bos --val-lm-no-eos --precision "
    "--mixed-precision --manifest-dir": PART,
    "--cargo --features --release --bin": NotNeeded("there is no build; pip installs the CUDA wheels of JAX"),
    "RUST_LOG": NotNeeded("the console has progress lines, and RUN/events.jsonl everything"),
    **to("data",
         "--train-manifest=train "
         "--val-manifest|--validation-manifest|--valid-manifest|--validation-set|--val-set=validation "
         "--dataset-index-dir=cache --max-train-samples=max_train_utterances "
         "--max-val-samples=max_validation_utterances"),
    "--max-audio-duration-sec": "data.filters.max_duration_s",
    **to("training", "--epochs=num_epochs --gradient-accumulation-steps=accumulate --log-every=log_every"),
    "--weight-decay": "optim.weight_decay",
    **to("training.ema", "--ema-decay=decay --ema-start-step=start"),
    **to("training.validation", "--validate-every-steps=every --val-log-samples=num_samples"),
    "--tokenizer": "data.tokenizer.path",
    "--paraformer-alignment-mode": "model.heads.paraformer.alignment",
    "--w2v-activation-checkpointing":
        To("model.encoder.remat", lambda value: "layers" if truth(value) else "elementwise"),
    **to("model.encoder",
         "--w2v-num-adapter-layers=num_adapters --w2v-adapter-stride=adapter_stride "
         "--w2v-adapter-kernel-size=adapter_kernel_size"),
    "--backend": Elsewhere("train --device", one_of(cpu="cpu", cuda="gpu", wgpu="gpu")),
    "--device-index": Elsewhere("train --devices"),
    "--output-dir": "run_dir",
    "--init-from": "init.path",
    "--resume-from": Elsewhere("train --run-dir"),
    "--dry-run": "dry_run",
    "--tui": Elsewhere("train --tui"),
    "--hf-upload-checkpoints": NotNeeded("--hf-upload-repo-id alone uploads"),
    "--hf-upload-repo-id": To("upload.to", lambda value: f"hf://{value}"),
    **to("upload", "--hf-upload-revision=revision --hf-upload-private=private"),
    "--hf-upload-checkpoint-format": Absent("there are safetensors and Orbax: set upload.format", ("safetensors",)),
    # the subcommands tokenizer and extract-features, asr-kernel-bench, build-colab-glibc.sh
    **_same("tokenizer", "input model-prefix model-type character-coverage input-sentence-size shuffle-input-sentence "
            "train-extremely-large-corpus user-defined-symbols byte-fallback keep-corpus sentencepiece-command"),
    **_same("extract_features", "output max-samples jobs"),
    **_same("benchmark kernels", "batch seq-len channels heads"),
    "COLAB_BASE_IMAGE COLAB_GLIBC_IMAGE_TAG": NotNeeded("there is no binary to build"),
}  # fmt: skip
OF_FEATURES = _same("extract_features", "input architecture tokenizer tui") | {
    "--max-audio-duration-sec": Elsewhere("extract_features --reject-above")
}
DEFAULTS = (
    "--architecture squeezeformer --blank-id 0 --batch-size 8 --epochs 500 --weight-decay 0.0005 --lr-min 0.0 "
    "--gradient-accumulation-steps 1 --ema-decay 0.0 --precision f32 --val-beam-width 1 --val-log-samples 0 "
    "--log-every 10 --spec-time-masks 0 --spec-freq-masks 0 --waveform-noise-std 0.0"
)


def _architecture(given: Given) -> str:
    for name in ("zipformer", "paraformer", "w2v_bert"):
        if given.is_on(f"--{name.replace('_', '-')}"):
            return name
    return str(given.read("--architecture", _known, "squeezeformer"))


def _known(value: str) -> str:
    name = value.replace("-", "_")
    if name not in RECIPES:
        raise ValueError("expected squeezeformer, zipformer, paraformer or w2v-bert")
    return name


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    name = _architecture(given)
    yield Change("name", f"{name}_rust", "--architecture --zipformer --paraformer --w2v-bert")
    yield from _encoder(name, given, base)
    yield from _data(given)
    yield from _batches(given)
    yield from _augmentation(given)
    yield from _schedule(name, given)
    yield from _clipping(given)
    yield from _decoding(given, base)
    precision = given.get("--precision", "f32")
    if given.is_on("--mixed-precision") and not given.is_explicit("--precision"):
        precision = "f16"
    yield Change("training.precision", precision, "--precision --mixed-precision")
    if precision == "f16":
        yield "f16 keeps parameters, norms and losses in float32, and scales the loss; the Rust trainer does not"
    if "--validate-every-steps" not in given:
        yield Change("training.validation.each_epoch", True)
    if "--hf-upload-repo-id" in given:
        yield "the best checkpoint is uploaded with a model card, not each one"
    if "--init-from" in given:
        yield Change("init.new", ("heads_.*",))
        yield (
            "--init-from reads PositiveLoss's .safetensors of Squeezeformer, W2V-BERT and Paraformer; it cannot read "
            "the .safetensors of Zipformer, or Burn's files, which contain no names"
        )


def _encoder(name: str, given: Given, base: Experiment) -> Iterator[Change | str]:
    sizes = {"dim": "--d-model", "num_layers": "--num-layers", "num_heads": "--num-heads"}
    changes = {ours: given.number(theirs) for ours, theirs in sizes.items() if theirs in given}
    variant, names = given.get("--variant"), " ".join(["--variant", *sizes.values()])
    if name == "squeezeformer":
        yield Change("model.encoder", Squeezeformer.rust(variant or "sm", **changes), names)
    elif name == "zipformer":
        rates = {"dropout_start": 0.1, "dropout_end": 0.1, "skip": False}
        yield Change("model.encoder", Zipformer.variant(variant or "m", **rates), names)
        if changes:
            yield f"{', '.join(sizes.values())} have no effect on a Zipformer, whose sizes are tuples"
    elif name == "paraformer":
        is_enhanced = given.is_on("--paraformer-enhanced")
        sized = Conformer.paraformer(variant or "medium", **changes)
        tap = Conformer.paraformer_tap(sized.num_layers)
        sized = replace(sized, taps=(tap,) if is_enhanced else ())
        yield Change("model.encoder", sized, names)
        decoder = base.model.heads["paraformer"].decoder  # type: ignore[attr-defined]
        yield Change("model.heads.paraformer.decoder", replace(decoder, num_heads=sized.num_heads), names)
        if variant and variant not in PARAFORMER:
            yield f"--variant {variant} is not known"
        if is_enhanced:
            shallow = CTC(dropout=0.0, tap=tap, scale=0.3)
            yield Change("model.heads.paraformer.enhanced", Enhancement(tap=tap), "--paraformer-enhanced")
            yield Change("model.heads.shallow", shallow, "--paraformer-enhanced")
    else:
        yield from _w2v_bert(given, changes)
    if "--input-dim" in given and given.number("--input-dim") != base.model.front_end.num_features:
        yield f"{given.values['--input-dim']}: of ready features, set model.encoder.num_mels to their columns"


def _w2v_bert(given: Given, changes: dict[str, Any]) -> Iterator[Change | str]:
    path = given.get("--w2v-hf-model-dir")
    if not path:
        yield Change("model.encoder", W2VBert.rust(**changes), "--architecture")
        return
    if found := model_of(path):
        yield Change("model.encoder", replace(found[0], masks=True), "--w2v-hf-model-dir")  # type: ignore[call-arg]
        yield Change("model.front_end", found[1], "--w2v-hf-model-dir")
    else:
        yield (
            f"--w2v-hf-model-dir: {path} is not on this machine: the sizes are the released ones; migrate where the "
            "folder is"
        )
    if given.is_on("--w2v-hf-load-weights"):
        yield Change("init.path", path, "--w2v-hf-load-weights --w2v-hf-model-dir")


def _data(given: Given) -> Iterator[Change | str]:
    if "--manifest-dir" in given:
        yield Change("data.train", (given.get("--manifest-dir"),), "--manifest-dir")
        yield Change("data.validation", (given.get("--manifest-dir"),), "--manifest-dir")
    elif "--val-manifest" not in given:
        yield Change("data.validation", ())
        yield "without a validation set, a tenth of the training set is cut off by speaker, not its last tenth"
    if "--tokenizer" in given:
        yield Change("data.tokenizer.kind", "sentencepiece", "--tokenizer")
        if not given.is_explicit("--blank-id"):
            yield "the blank is the last label, not 0, because 0 is <unk> of SentencePiece (data.tokenizer.blank_id)"
    elif "--vocab-size" in given:
        yield Change("data.tokenizer.kind", "ids", "--vocab-size")
    if given.is_explicit("--blank-id") or ("--vocab-size" in given and "--tokenizer" not in given):
        yield Change("data.tokenizer.blank_id", given.number("--blank-id"), "--blank-id")
    if str(given.get("--vocab-size", "")).isdecimal():
        yield Change("data.tokenizer.vocab_size", given.number("--vocab-size"), "--vocab-size")
    elif "--vocab-size" in given:
        yield f"{given.values['--vocab-size']} is no number: set data.tokenizer.vocab_size"


def _batches(given: Given) -> Iterator[Change | str]:
    devices, rows = max(len(words(given.get("--device-indices", "0"))), 1), given.number("--batch-size", 8)
    of_rows, of_unit, of_budget = "--batch-size", "--batch-size", "--batch-size"
    unit, scale, budget = "utterances", 1, rows
    if "--adaptive-batch-unit" in given or "--adaptive-batch-budget" in given:
        unit, scale = given.read("--adaptive-batch-unit", _unit, (unit, scale))
        budget = given.number("--adaptive-batch-budget", rows)
        of_unit, of_budget = "--adaptive-batch-unit", "--adaptive-batch-budget"
        if "--adaptive-batch-max-samples" in given:
            rows, of_rows = max(given.number("--adaptive-batch-max-samples"), 1), "--adaptive-batch-max-samples"
    yield Change("data.batching.unit", unit, of_unit)
    yield Change("data.batching.budget", float(devices * budget / scale), f"{of_budget} × --device-indices")
    yield Change("data.batching.max_rows", devices * rows, f"{of_rows} × --device-indices")
    yield Change("data.batching.row_multiple", devices, "--device-indices")
    if given.is_on("--sort-by-length-desc"):
        window = given.number("--sort-buffer-size", 4096)
        yield Change("data.batching.sort_window", window, "--sort-by-length-desc --sort-buffer-size")
    else:
        yield "batches are shuffled in every epoch; the Rust trainer reads the manifest in its order"


def _unit(value: str) -> tuple[str, int]:
    if value not in UNITS:
        raise ValueError(f"expected one of {', '.join(UNITS)}")
    return UNITS[value]


def _augmentation(given: Given) -> Iterator[Change | str]:
    made: list[Any] = []
    low, high = given.real("--waveform-gain-min-db"), given.real("--waveform-gain-max-db")
    if low or high:
        made.append(Gain(db=(low, high)))
    if noise := given.real("--waveform-noise-std"):
        made.append(UniformNoise(level=(noise, noise)))
    times, bins = given.number("--spec-time-masks"), given.number("--spec-freq-masks")
    frames, max_bins = given.number("--spec-time-mask-max-frames"), given.number("--spec-freq-mask-max-bins")
    if times or bins:
        masks = SpecAugment.rust(
            num_time_masks=times, max_time_frames=frames, num_freq_masks=bins, max_freq_bins=max_bins
        )
        made.append(masks)
    names = [name for name in given.named("--spec-", "--waveform-") if given.is_explicit(name)]
    yield Change("model.augment", tuple(made), " ".join(names))


def _schedule(name: str, given: Given) -> Iterator[Change]:
    peak = given.real("--learning-rate", PEAKS[name])
    least = min(given.real("--lr-min"), peak)
    steps = {f"--lr-{part}-steps": given.number(f"--lr-{part}-steps") for part in ("warmup", "hold", "decay")}
    usual = {"--lr-warmup-epochs": 20, "--lr-hold-epochs": 160, "--lr-decay-exponent": 1.0}
    if any(steps.values()):
        warmup, hold, decay = steps.values()
        schedule: Any = WarmupHoldDecay(
            peak_lr=peak,
            warmup_updates=warmup,
            hold_updates=hold,
            decay="linear" if decay else "none",
            decay_updates=decay,
            final_share=least / peak,
            counts_from=1,
        )
    else:
        warmup, hold, exponent = (given.number(each, default) for each, default in usual.items())
        schedule = InverseEpoch(
            peak_lr=peak, min_lr=least, warmup_epochs=warmup, hold_epochs=hold, exponent=float(exponent)
        )
    yield Change("optim.schedule", schedule)
    if any(steps.values()):
        names = {"decay": "--lr-decay-steps", "final_share": "--lr-min --learning-rate: lr-min / learning-rate"}
        names |= {f"{part}_updates": f"--lr-{part}-steps" for part in ("warmup", "hold", "decay")}
    else:
        names = {"exponent": "--lr-decay-exponent", "min_lr": "--lr-min"}
        names |= {f"{part}_epochs": f"--lr-{part}-epochs" for part in ("warmup", "hold")}
    yield from parts("optim.schedule", schedule, {"peak_lr": "--learning-rate", **names})


def _clipping(given: Given) -> Iterator[Change | str]:
    yield Change("optim.eps", 1e-5)
    yield Change("optim.decay_factors", EVERYTHING)
    if "--gradient-clip-norm" in given and "--gradient-clip-value" in given:
        raise UserError("--gradient-clip-norm and --gradient-clip-value exclude each other: expected one of them")
    if "--gradient-clip-norm" in given:
        yield Change("optim.clip", "tensor_norm", "--gradient-clip-norm")
        yield "--gradient-clip-norm limits the norm of each tensor, as in Burn; optim.clip global_norm is the usual one"
    elif "--gradient-clip-value" in given:
        yield Change("optim.clip", "value", "--gradient-clip-value")
    limit = given.real("--gradient-clip-norm", given.real("--gradient-clip-value"))
    yield Change("optim.clip_at", limit, "--gradient-clip-norm --gradient-clip-value")


def _decoding(given: Given, base: Experiment) -> Iterator[Change | str]:
    width, place = given.number("--val-beam-width", 1), "model.heads.ctc.decoding"
    if width <= 1:
        return
    yield Change(f"{place}.kind", "beam", "--val-beam-width")
    yield Change(f"{place}.search.beam_width", width, "--val-beam-width")
    best = given.number("--val-n-best", width)
    yield Change(f"{place}.search.num_best", best, "--val-n-best --val-beam-width")
    if "--val-lm-path" in given:
        fields = {
            "--val-lm-path": ("kenlm", given.get("--val-lm-path")),
            "--val-lm-weight": ("lm_weight", given.real("--val-lm-weight", 0.45)),
            "--val-lm-word-bonus": ("word_bonus", given.real("--val-lm-word-bonus")),
            "--val-lm-no-bos": ("bos", not given.is_on("--val-lm-no-bos")),
            "--val-lm-no-eos": ("eos", not given.is_on("--val-lm-no-eos")),
        }
        for name, (field, value) in fields.items():
            yield Change(f"{place}.reranking.{field}", value, name)
    if base.model.primary == "paraformer":
        yield "the beam is that of the CTC head: --head ctc in evaluate; the decoder of Paraformer has none"


RUST = System(
    "rust",
    "the Rust trainer",
    r"cargo run|rust-asr|--train-manifest[ =][^-]*--|--adaptive-batch-|burn-cuda-backend",
    ROWS,
    lambda given: RECIPES[_architecture(given)],
    _derive,
    (
        Program("cargo run train", DEFAULTS),
        Program("cargo run tokenizer", command="tokenizer", rows=_same("tokenizer", "vocab-size output-dir")),
        Program("cargo run extract-features", command="extract_features", rows=OF_FEATURES),
        Program("cargo run asr-kernel-bench", command="benchmark kernels"),
    ),
)
