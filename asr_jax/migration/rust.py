"""The Rust trainer on Burn (RustedBytes/w2v-bert-uk at commit adec09e, src/bin/train.rs; seed 003)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asr_jax.audio.distort import Gain, UniformNoise
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, model_of
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import Enhancement
from asr_jax.migration.engine import Change, Given, Program, System
from asr_jax.migration.rows import PART, Absent, Elsewhere, NotNeeded, Table, To, one_of, real, text, truth, words
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
TABLE = Table(
    {
        "--cargo --features --release --bin": NotNeeded("there is no build; pip installs the CUDA wheels of JAX"),
        "RUST_LOG": NotNeeded("the console has progress lines, and RUN/events.jsonl everything"),
        "--vocab-size": PART,
        "--train-manifest": PART,
        "--val-manifest --validation-manifest --valid-manifest --validation-set --val-set": To(
            "data.validation", words
        ),
        "--manifest-dir": PART,
        "--input-dim": PART,
        "--architecture": PART,
        "--zipformer": PART,
        "--paraformer": PART,
        "--w2v-bert": PART,
        "--variant": PART,
        "--blank-id": PART,
        "--d-model": PART,
        "--num-layers": PART,
        "--num-heads": PART,
        "--batch-size": PART,
        "--adaptive-batch-unit": PART,
        "--adaptive-batch-budget": PART,
        "--adaptive-batch-max-samples": PART,
        "--max-audio-duration-sec": To("data.filters.max_duration_s", real),
        "--sort-by-length-desc": PART,
        "--sort-buffer-size": PART,
        "--dataset-index-dir": To("data.cache", text),
        "--spec-time-masks": PART,
        "--spec-time-mask-max-frames": PART,
        "--spec-freq-masks": PART,
        "--spec-freq-mask-max-bins": PART,
        "--waveform-gain-min-db": PART,
        "--waveform-gain-max-db": PART,
        "--waveform-noise-std": PART,
        "--epochs": To("training.num_epochs"),
        "--learning-rate": PART,
        "--weight-decay": To("optim.weight_decay", real),
        "--lr-warmup-epochs --warmup-epochs": PART,
        "--lr-hold-epochs --hold-epochs": PART,
        "--lr-decay-exponent --decay-exponent": PART,
        "--lr-warmup-steps": PART,
        "--lr-hold-steps": PART,
        "--lr-decay-steps": PART,
        "--lr-min": PART,
        "--gradient-accumulation-steps": To("training.accumulate"),
        "--gradient-clip-norm": PART,
        "--gradient-clip-value": PART,
        "--ema-decay": To("training.ema.decay", real),
        "--ema-start-step": To("training.ema.start"),
        "--validate-every-steps": To("training.validation.every"),
        "--max-val-samples": To("data.max_validation_utterances"),
        "--tokenizer": To("data.tokenizer.path", text),
        "--val-beam-width": PART,
        "--val-n-best": PART,
        "--val-lm-path": PART,
        "--val-lm-weight": PART,
        "--val-lm-word-bonus": PART,
        "--val-lm-no-bos": PART,
        "--val-lm-no-eos": PART,
        "--val-log-samples": To("training.validation.num_samples"),
        "--paraformer-alignment-mode": To("model.heads.paraformer.alignment", text),
        "--paraformer-enhanced": PART,
        "--w2v-hf-model-dir": PART,
        "--w2v-hf-load-weights": PART,
        "--w2v-activation-checkpointing": To(
            "model.encoder.remat", lambda value: "layers" if truth(value) else "elementwise"
        ),
        "--w2v-num-adapter-layers": To("model.encoder.num_adapters"),
        "--w2v-adapter-stride": To("model.encoder.adapter_stride"),
        "--w2v-adapter-kernel-size": To("model.encoder.adapter_kernel_size"),
        "--backend": Elsewhere("train --device", one_of(cpu="cpu", cuda="gpu", wgpu="gpu")),
        "--device-index": Elsewhere("train --devices"),
        "--device-indices": PART,
        "--precision": PART,
        "--mixed-precision": PART,
        "--output-dir": To("run_dir", text),
        "--init-from": PART,
        "--resume-from": Elsewhere("train --run-dir"),
        "--log-every": To("training.log_every"),
        "--dry-run": To("dry_run", truth),
        "--max-train-samples": To("data.max_train_utterances"),
        "--tui": Elsewhere("train --tui"),
        "--hf-upload-checkpoints": NotNeeded("--hf-upload-repo-id alone uploads"),
        "--hf-upload-repo-id": PART,
        "--hf-upload-revision": To("upload.revision", text),
        "--hf-upload-private": To("upload.private", truth),
        "--hf-upload-checkpoint-format": Absent("there are safetensors and Orbax: set upload.format", ("safetensors",)),
        # the subcommands tokenizer and extract-features, asr-kernel-bench, build-colab-glibc.sh
        "--input": Elsewhere("tokenizer --input"),
        "--model-prefix": Elsewhere("tokenizer --model-prefix"),
        "--model-type": Elsewhere("tokenizer --model-type"),
        "--character-coverage": Elsewhere("tokenizer --character-coverage"),
        "--input-sentence-size": Elsewhere("tokenizer --input-sentence-size"),
        "--shuffle-input-sentence": Elsewhere("tokenizer --shuffle-input-sentence"),
        "--train-extremely-large-corpus": Elsewhere("tokenizer --train-extremely-large-corpus"),
        "--user-defined-symbols": Elsewhere("tokenizer --user-defined-symbols"),
        "--byte-fallback": Elsewhere("tokenizer --byte-fallback"),
        "--keep-corpus": Elsewhere("tokenizer --keep-corpus"),
        "--sentencepiece-command": Elsewhere("tokenizer --sentencepiece-command"),
        "--output": Elsewhere("extract_features --output"),
        "--max-samples": Elsewhere("extract_features --max-samples"),
        "--jobs": Elsewhere("extract_features --jobs"),
        "--batch": Elsewhere("benchmark kernels --batch"),
        "--seq-len": Elsewhere("benchmark kernels --seq-len"),
        "--channels": Elsewhere("benchmark kernels --channels"),
        "--heads": Elsewhere("benchmark kernels --heads"),
        "COLAB_BASE_IMAGE COLAB_GLIBC_IMAGE_TAG": NotNeeded("there is no binary to build"),
    }
)
OF_TOKENIZER = Table(
    {
        "--vocab-size": Elsewhere("tokenizer --vocab-size"),
        "--output-dir": Elsewhere("tokenizer --output-dir"),
    }
)
OF_FEATURES = Table(
    {
        "--input": Elsewhere("extract_features --input"),
        "--architecture": Elsewhere("extract_features --architecture"),
        "--tokenizer": Elsewhere("extract_features --tokenizer"),
        "--max-audio-duration-sec": Elsewhere("extract_features --reject-above"),
        "--tui": Elsewhere("extract_features --tui"),
    }
)
DEFAULTS: dict[str, Any] = {
    "--architecture": "squeezeformer", "--blank-id": 0, "--batch-size": 8, "--epochs": 500, "--weight-decay": 5e-4,
    "--lr-min": 0.0, "--gradient-accumulation-steps": 1, "--ema-decay": 0.0, "--precision": "f32",
    "--val-beam-width": 1, "--val-log-samples": 0, "--log-every": 10, "--spec-time-masks": 0, "--spec-freq-masks": 0,
    "--waveform-noise-std": 0.0,
}  # fmt: skip


def _architecture(given: Given) -> str:
    for name in ("zipformer", "paraformer", "w2v_bert"):
        if given.read(f"--{name.replace('_', '-')}", truth, False):
            return name
    return str(given.get("--architecture", "squeezeformer")).replace("-", "_")


def _recipe(given: Given) -> str:
    return RECIPES[given.read("--architecture", lambda _: _known(_architecture(given)), _architecture(given))]


def _known(name: str) -> str:
    if name not in RECIPES:
        raise ValueError(f"{name}: expected squeezeformer, zipformer, paraformer or w2v-bert")
    return name


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    name = _architecture(given)
    yield Change("name", f"{name}_rust", ("--architecture", "--zipformer", "--paraformer", "--w2v-bert"), ", ")
    yield from _encoder(name, given, base)
    yield from _data(given)
    yield from _batches(given)
    yield from _augmentation(given)
    yield from _optimizer(name, given)
    yield from _decoding(given, base)
    precision = given.get("--precision", "f32")
    if given.read("--mixed-precision", truth, False) and not given.is_explicit("--precision"):
        precision = "f16"
    yield Change("training.precision", precision, ("--precision", "--mixed-precision"), ", ")
    if precision == "f16":
        yield "f16 keeps parameters, norms and losses in float32, and scales the loss; the Rust trainer does not"
    if "--validate-every-steps" not in given:
        yield Change("training.validation.each_epoch", True)
    if "--hf-upload-repo-id" in given:
        yield Change("upload.to", f"hf://{given.get('--hf-upload-repo-id')}", ("--hf-upload-repo-id",))
        yield "the best checkpoint is uploaded with a model card, not each one"
    if "--init-from" in given:
        yield Change("init.path", given.get("--init-from"), ("--init-from",))
        yield Change("init.new", ("heads_.*",))
        yield "--init-from: Burn's files have no names and are not read; .safetensors of Squeezeformer are"


def _encoder(name: str, given: Given, base: Experiment) -> Iterator[Change | str]:
    sizes = {"dim": "--d-model", "num_layers": "--num-layers", "num_heads": "--num-heads"}
    changes = {ours: given.number(theirs) for ours, theirs in sizes.items() if theirs in given}
    variant, names = given.get("--variant"), ("--variant", *sizes.values())
    if name == "squeezeformer":
        yield Change("model.encoder", Squeezeformer.rust(variant or "sm", **changes), names, ", ")
    elif name == "zipformer":
        rates = {"dropout_start": 0.1, "dropout_end": 0.1, "skip": False}
        yield Change("model.encoder", Zipformer.variant(variant or "m", **rates), names, ", ")
        if changes:
            yield f"{', '.join(sizes.values())} have no effect on a Zipformer, whose sizes are tuples"
    elif name == "paraformer":
        is_enhanced = given.read("--paraformer-enhanced", truth, False)
        sized = Conformer.paraformer(variant or "medium", taps=("layer_5",) if is_enhanced else (), **changes)
        yield Change("model.encoder", sized, names, ", ")
        decoder = base.model.heads["paraformer"].decoder  # type: ignore[attr-defined]
        yield Change("model.heads.paraformer.decoder", replace(decoder, num_heads=sized.num_heads), names, ", ")
        if variant and variant not in PARAFORMER:
            yield f"--variant {variant} is not known"
        if is_enhanced:
            shallow = CTC(dropout=0.0, tap="layer_5", scale=0.3)
            yield Change("model.heads.paraformer.enhanced", Enhancement(), ("--paraformer-enhanced",))
            yield Change("model.heads.shallow", shallow, ("--paraformer-enhanced",))
    else:
        yield from _w2v_bert(given, changes)
    if "--input-dim" in given and given.number("--input-dim") != base.model.front_end.num_features:
        yield f"{given.said(['--input-dim'])}: of ready features, set model.encoder.num_mels to their columns"


def _w2v_bert(given: Given, changes: dict[str, Any]) -> Iterator[Change | str]:
    path = given.get("--w2v-hf-model-dir")
    if not path:
        yield Change("model.encoder", W2VBert.rust(**changes), ("--architecture",))
        return
    found = model_of(path)
    if not found:
        yield f"{path} is not on this machine: the sizes are the released ones; migrate where the folder is"
    else:
        yield Change("model.encoder", replace(found[0], masks=True), ("--w2v-hf-model-dir",))  # type: ignore[call-arg]
        yield Change("model.front_end", found[1], ("--w2v-hf-model-dir",))
    if given.read("--w2v-hf-load-weights", truth, False):
        yield Change("init.path", path, ("--w2v-hf-load-weights", "--w2v-hf-model-dir"), ", ")


def _data(given: Given) -> Iterator[Change | str]:
    if "--manifest-dir" in given:
        yield Change("data.train", (given.get("--manifest-dir"),), ("--manifest-dir",))
        yield Change("data.validation", (given.get("--manifest-dir"),), ("--manifest-dir",))
    elif "--train-manifest" in given:
        yield Change("data.train", words(given.get("--train-manifest")), ("--train-manifest",))
    if "--val-manifest" not in given and "--manifest-dir" not in given:
        yield Change("data.validation", ())
        yield "without a validation set, a tenth of the training set is cut off by speaker, not its last tenth"
    if "--tokenizer" in given:
        yield Change("data.tokenizer.kind", "sentencepiece", ("--tokenizer",))
        if given.is_explicit("--blank-id"):
            yield Change("data.tokenizer.blank_id", given.number("--blank-id"), ("--blank-id",))
    elif "--vocab-size" in given:
        yield Change("data.tokenizer.kind", "ids", ("--vocab-size",))
        yield Change("data.tokenizer.blank_id", given.number("--blank-id"), ("--blank-id",))
    if str(given.get("--vocab-size", "")).isdecimal():
        yield Change("data.tokenizer.vocab_size", given.number("--vocab-size"), ("--vocab-size",))
    elif "--vocab-size" in given:
        yield f"{given.said(['--vocab-size'])} is no number: set data.tokenizer.vocab_size"
    if "--tokenizer" in given and not given.is_explicit("--blank-id"):
        yield "the blank is the last label, not 0, because 0 is <unk> of SentencePiece (data.tokenizer.blank_id)"


def _batches(given: Given) -> Iterator[Change | str]:
    devices = max(len(words(given.get("--device-indices", "0"))), 1)
    rows = given.number("--batch-size", 8)
    names: tuple[str, ...] = ("--batch-size", "--device-indices")
    if "--adaptive-batch-unit" in given or "--adaptive-batch-budget" in given:
        unit, scale = given.read("--adaptive-batch-unit", UNITS.__getitem__, ("utterances", 1))
        budget = devices * given.number("--adaptive-batch-budget", rows) / scale
        yield Change("data.batching.unit", unit, ("--adaptive-batch-unit",))
        yield Change("data.batching.budget", float(budget), ("--adaptive-batch-budget", "--device-indices"))
        most = given.number("--adaptive-batch-max-samples", rows)
        names = ("--adaptive-batch-max-samples" if "--adaptive-batch-max-samples" in given else names[0], names[1])
        yield Change("data.batching.max_rows", max(devices * most, devices), names)
    else:
        yield Change("data.batching.unit", "utterances", ("--batch-size",))
        yield Change("data.batching.budget", float(devices * rows), names)
        yield Change("data.batching.max_rows", devices * rows, names)
    yield Change("data.batching.row_multiple", devices, ("--device-indices",))
    if given.read("--sort-by-length-desc", truth, False):
        window = given.number("--sort-buffer-size", 4096)
        yield Change("data.batching.sort_window", window, ("--sort-by-length-desc", "--sort-buffer-size"), ", ")
    else:
        yield "batches are shuffled in every epoch; the Rust trainer reads the manifest in its order"


def _augmentation(given: Given) -> Iterator[Change | str]:
    made: list[Any] = []
    low, high = given.number("--waveform-gain-min-db"), given.number("--waveform-gain-max-db")
    if low or high:
        made.append(Gain(db=(float(low), float(high))))
    if noise := given.number("--waveform-noise-std"):
        made.append(UniformNoise(level=(float(noise), float(noise))))
    times, bins = given.number("--spec-time-masks"), given.number("--spec-freq-masks")
    if times or bins:
        made.append(
            SpecAugment.rust(
                num_time_masks=times,
                max_time_frames=given.number("--spec-time-mask-max-frames"),
                num_freq_masks=bins,
                max_freq_bins=given.number("--spec-freq-mask-max-bins"),
            )
        )
    names = [name for name in given.values if name.startswith(("--spec-", "--waveform-")) and given.is_explicit(name)]
    yield Change("model.augment", tuple(made), tuple(names), ", ")


def _optimizer(name: str, given: Given) -> Iterator[Change | str]:
    peak = given.read("--learning-rate", float, PEAKS[name])
    steps = ("--lr-warmup-steps", "--lr-hold-steps", "--lr-decay-steps")
    epochs = ("--lr-warmup-epochs", "--lr-hold-epochs", "--lr-decay-exponent")
    least = min(given.read("--lr-min", float, 0.0), peak)
    if any(given.number(each) for each in steps):
        decay = given.number(steps[2])
        schedule: Any = WarmupHoldDecay(
            peak_lr=peak,
            warmup_updates=given.number(steps[0]),
            hold_updates=given.number(steps[1]),
            decay="linear" if decay else "none",
            decay_updates=decay,
            final_share=least / peak,
            counts_from=1,
        )
        yield Change("optim.schedule", schedule, ("--learning-rate", *steps, "--lr-min"), ", ")
    else:
        warmup, hold, exponent = (given.number(each, usual) for each, usual in zip(epochs, (20, 160, 1.0), strict=True))
        schedule = InverseEpoch(
            peak_lr=peak, min_lr=least, warmup_epochs=warmup, hold_epochs=hold, exponent=float(exponent)
        )
        yield Change("optim.schedule", schedule, ("--learning-rate", *epochs, "--lr-min"), ", ")
    yield Change("optim.eps", 1e-5)
    yield Change("optim.decay_factors", EVERYTHING)
    if "--gradient-clip-norm" in given:
        yield Change("optim.clip", "tensor_norm", ("--gradient-clip-norm",))
        yield "--gradient-clip-norm limits the norm of each tensor, as in Burn; optim.clip global_norm is the usual one"
    elif "--gradient-clip-value" in given:
        yield Change("optim.clip", "value", ("--gradient-clip-value",))
    limit = given.number("--gradient-clip-norm", given.number("--gradient-clip-value"))
    yield Change("optim.clip_at", float(limit), ("--gradient-clip-norm", "--gradient-clip-value"), ", ")


def _decoding(given: Given, base: Experiment) -> Iterator[Change | str]:
    width = given.number("--val-beam-width", 1)
    place = "model.heads.ctc.decoding"
    if width <= 1:
        return
    yield Change(f"{place}.kind", "beam", ("--val-beam-width",))
    yield Change(f"{place}.search.beam_width", width, ("--val-beam-width",))
    yield Change(
        f"{place}.search.num_best", given.number("--val-n-best", width), ("--val-n-best", "--val-beam-width"), ", "
    )
    if "--val-lm-path" in given:
        lm = f"{place}.reranking"
        yield Change(f"{lm}.kenlm", given.get("--val-lm-path"), ("--val-lm-path",))
        yield Change(f"{lm}.lm_weight", given.read("--val-lm-weight", float, 0.45), ("--val-lm-weight",))
        yield Change(f"{lm}.word_bonus", given.read("--val-lm-word-bonus", float, 0.0), ("--val-lm-word-bonus",))
        for name in ("bos", "eos"):
            yield Change(
                f"{lm}.{name}",
                given.read(f"--val-lm-no-{name}", lambda value: not truth(value), True),
                (f"--val-lm-no-{name}",),
            )
    if base.model.primary == "paraformer":
        yield "the beam is that of the CTC head: --head ctc in evaluate; the decoder of Paraformer has none"


RUST = System(
    "rust",
    "the Rust trainer",
    r"cargo run|rust-asr|--train-manifest[ =][^-]*--|--adaptive-batch-|burn-cuda-backend",
    TABLE,
    _recipe,
    _derive,
    (
        Program("cargo run train", DEFAULTS),
        Program("cargo run tokenizer", command="tokenizer", table=OF_TOKENIZER),
        Program("cargo run extract-features", command="extract_features", table=OF_FEATURES),
        Program("cargo run asr-kernel-bench", command="benchmark kernels"),
    ),
)
