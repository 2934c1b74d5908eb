"""icefall's recipe egs/*/ASR/zipformer (train.py and asr_datamodule.py at commit 36e0420c)."""

from collections.abc import Iterator
from typing import Any

from asr_jax.audio.specaugment import SpecAugment, TimeWarp
from asr_jax.config import Experiment
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.migration.engine import Change, Given, Program, System
from asr_jax.migration.rows import PART, Absent, NotNeeded, Table, To, numbers, real, text, truth
from asr_jax.models.encoder import contexts_of
from asr_jax.nn.decoders.label_decoder import LabelDecoder

ENCODER, HEAD = "model.encoder", "model.heads.transducer"
SIZES = {
    "num-encoder-layers": "num_layers", "downsampling-factor": "downsampling", "feedforward-dim": "feedforward_dims",
    "num-heads": "num_heads", "encoder-dim": "dims", "query-head-dim": "query_dims", "value-head-dim": "value_dims",
    "pos-head-dim": "position_dims", "encoder-unmasked-dim": "unmasked_dims", "cnn-module-kernel": "kernel_sizes",
}  # fmt: skip
TABLE = Table({
    **{f"--{name}": PART for name in SIZES},
    "--pos-dim": To(f"{ENCODER}.positions_dim"),
    "--decoder-dim": PART,
    "--joiner-dim": PART,
    "--attention-decoder-dim": PART,
    "--attention-decoder-num-layers": PART,
    "--attention-decoder-attention-dim": PART,
    "--attention-decoder-num-heads": PART,
    "--attention-decoder-feedforward-dim": PART,
    "--causal": PART,
    "--chunk-size": PART,
    "--left-context-frames": PART,
    "--use-transducer": PART,
    "--use-ctc": PART,
    "--use-attention-decoder": PART,
    "--use-cr-ctc": PART,
    "--world-size": PART,
    "--master-port": NotNeeded("one process uses all devices (docs/several-machines.md)"),
    "--tensorboard": NotNeeded("RUN has the files of TensorBoard"),
    "--num-epochs": To("training.num_epochs"),
    "--start-epoch": NotNeeded("training into the folder of a run continues it"),
    "--start-batch": NotNeeded("training into the folder of a run continues it"),
    "--exp-dir": To("run_dir", text),
    "--bpe-model --lang-dir": To("data.tokenizer.path", text),
    "--base-lr": To("optim.schedule.peak_lr", real),
    "--lr-batches": To("optim.schedule.decay_updates", real),
    "--lr-epochs": To("optim.schedule.decay_epochs", real),
    "--ref-duration": PART,
    "--context-size": PART,
    "--prune-range": PART,
    "--lm-scale": PART,
    "--am-scale": PART,
    "--simple-loss-scale": PART,
    "--ctc-loss-scale": PART,
    "--cr-loss-scale": PART,
    "--time-mask-ratio": PART,
    "--attention-decoder-loss-scale": PART,
    "--seed": To("seed"),
    "--print-diagnostics": NotNeeded("events.jsonl has the norms of gradients; plan and observe.health describe a run"),
    "--inf-check": NotNeeded("an update with non-finite values is voided and named"),
    "--save-every-n": To("training.saving.every_updates"),
    "--keep-last-k": To("training.saving.keep_last"),
    "--average-period": NotNeeded("the parameters are averaged in every update (training.ema)"),
    "--use-fp16": PART,
    "--use-bf16": PART,
    "--full-libri": PART,
    "--mini-libri": PART,
    "--manifest-dir": PART,
    "--max-duration": PART,
    "--bucketing-sampler": Absent("batches are always of one bucket", ("true", "1")),
    "--num-buckets": To("data.batching.num_buckets"),
    "--concatenate-cuts": Absent("utterances are not concatenated"),
    "--duration-factor --gap": NotNeeded("they belong to --concatenate-cuts"),
    "--on-the-fly-feats": NotNeeded("features are computed on the device from the audio"),
    "--shuffle": Absent("batches are shuffled; data.batching.sort_window sorts", ("true", "1")),
    "--drop-last": NotNeeded("padding rows fill the last batch"),
    "--return-cuts --input-strategy": NotNeeded("features are computed on the device from the audio"),
    "--num-workers": To("data.workers"),
    "--enable-spec-aug": PART,
    "--spec-aug-time-warp-factor": PART,
    "--enable-musan": PART,
})  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "--use-transducer": True, "--use-ctc": False, "--use-cr-ctc": False, "--use-attention-decoder": False,
    "--world-size": 1, "--num-epochs": 30, "--base-lr": 0.045, "--lr-batches": 7500, "--lr-epochs": 3.5,
    "--ref-duration": 600, "--seed": 42, "--use-fp16": False, "--use-bf16": False, "--max-duration": 200,
    "--enable-spec-aug": True, "--enable-musan": True, "--ctc-loss-scale": 0.2,
    "--cr-loss-scale": 0.2, "--time-mask-ratio": 2.5, "--attention-decoder-loss-scale": 0.8, "--full-libri": True,
    "--save-every-n": 4000,
}  # fmt: skip


def _is(given: Given, name: str) -> bool:
    return bool(given.read(f"--{name}", truth, False))


def _recipe(given: Given) -> str:
    return "zipformer_transducer" if _is(given, "use-transducer") else "zipformer"


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    seconds = given.number("--world-size", 1) * given.number("--max-duration", 200)
    of_batch = ("--max-duration", "--world-size")
    yield Change("data.batching.budget", float(seconds), of_batch)
    share = seconds / given.number("--ref-duration", 600)
    yield Change(f"{ENCODER}.batches_per_update", share, (*of_batch, "--ref-duration"), ", ")
    rows = {name: given.read(f"--{name}", numbers) for name in SIZES if f"--{name}" in given}
    num = len(rows.get("encoder-dim") or base.model.encoder.dims)  # type: ignore[attr-defined]
    for name, values in rows.items():
        yield Change(f"{ENCODER}.{SIZES[name]}", tuple(values) * (num if len(values) == 1 else 1), (f"--{name}",))
    if _is(given, "causal"):
        chunks = [None if each < 0 else each for each in given.read("--chunk-size", numbers, (16, 32, 64, -1))]
        left = [None if each < 0 else each for each in given.read("--left-context-frames", numbers, (64, 128, 256, -1))]
        yield Change(f"{ENCODER}.causal", True, ("--causal",))
        contexts = contexts_of(tuple(chunks), tuple(left))
        yield Change(f"{ENCODER}.contexts", contexts, ("--chunk-size", "--left-context-frames"), ", ")
    yield from _heads(given, base)
    yield from _augmentation(given)
    precision = "f16" if _is(given, "use-fp16") else "bf16" if _is(given, "use-bf16") else "f32"
    yield Change("training.precision", precision, ("--use-fp16", "--use-bf16"), ", ")
    if "--manifest-dir" in given:
        yield Change("data.train", (given.get("--manifest-dir"),), ("--manifest-dir",))
        yield "data.train: lhotse's cuts of recordings are read; of precomputed features, the recordings are needed"
    elif _is(given, "mini-libri") or not _is(given, "full-libri"):
        path = base.data.train[0].replace(
            "train-960", "train-clean-5" if _is(given, "mini-libri") else "train-clean-100"
        )
        yield Change("data.train", (path,), ("--full-libri", "--mini-libri"), ", ")


def _heads(given: Given, base: Experiment) -> Iterator[Change | str]:
    with_transducer, with_ctc, with_cr = (_is(given, f"use-{name}") for name in ("transducer", "ctc", "cr-ctc"))
    with_decoder = _is(given, "use-attention-decoder")
    heads, names = dict[str, Any](), ["--use-transducer", "--use-ctc", "--use-cr-ctc", "--use-attention-decoder"]
    if with_transducer:
        heads["transducer"] = base.model.heads["transducer"]
    if with_ctc:
        # CR-CTC alone has the scale of CTC 1 in icefall's commands only if nothing else is trained
        scale = given.number("--ctc-loss-scale", 0.2) if with_transducer or with_decoder else 1.0
        cr = given.number("--cr-loss-scale", 0.2) / scale if with_cr else 0.0
        heads["ctc"] = CTC(dropout=0.1, scale=float(scale), consistency=round(float(cr), 6))
        names += ["--ctc-loss-scale", *(["--cr-loss-scale"] if with_cr else [])]
    if with_decoder:
        values = {
            ours: given.number(f"--attention-decoder-{theirs}", usual)
            for ours, theirs, usual in (
                ("dim", "dim", 512), ("num_layers", "num-layers", 6), ("attention_dim", "attention-dim", 512),
                ("num_heads", "num-heads", 8), ("feedforward_dim", "feedforward-dim", 2048),
            )
        }  # fmt: skip
        scale = given.read("--attention-decoder-loss-scale", float, 0.8)
        heads["attention"] = AttentionDecoder(
            scale=scale, decoder=LabelDecoder(**values), ctc="ctc" if with_ctc else ""
        )
        names.append("--attention-decoder-loss-scale")
    yield Change("model.heads", heads, tuple(names), ", ")
    if len(heads) > 1:
        primary = "transducer" if with_transducer else "attention"
        yield Change("model.primary", primary, ("--use-transducer",))
    if with_cr:
        yield Change("model.views", 2, ("--use-cr-ctc",))
    if with_transducer:
        fields = {
            "--decoder-dim": f"{HEAD}.prediction.dim", "--joiner-dim": f"{HEAD}.joint_dim",
            "--context-size": f"{HEAD}.prediction.context", "--prune-range": f"{HEAD}.pruning.size",
            "--lm-scale": f"{HEAD}.pruning.language_scale", "--am-scale": f"{HEAD}.pruning.acoustic_scale",
            "--simple-loss-scale": f"{HEAD}.pruning.simple_scale",
        }  # fmt: skip
        for name, field in fields.items():
            if name in given:
                value = given.number(name)
                yield Change(field, float(value) if "scale" in name else value, (name,))


def _augmentation(given: Given) -> Iterator[Change | str]:
    with_cr = _is(given, "use-cr-ctc")
    ratio = given.read("--time-mask-ratio", float, 2.5)
    masks = SpecAugment(num_time_masks=int(10 * ratio), max_time_share=0.15 * ratio) if with_cr else SpecAugment()
    if _is(given, "enable-spec-aug") or with_cr:
        names = ("--use-cr-ctc", "--time-mask-ratio") if with_cr else ("--enable-spec-aug",)
        frames = given.number("--spec-aug-time-warp-factor", 80)
        warp = (TimeWarp(max_frames=frames),) if frames > 0 else ()
        yield Change("model.augment", (*warp, masks), (*names, "--spec-aug-time-warp-factor"), ", ")
    else:
        yield Change("model.augment", (), ("--enable-spec-aug",))
    if _is(given, "enable-musan"):
        yield "noise needs a folder: add BackgroundNoise(probability=0.5, folder=MUSAN, …), as in configs/zipformer.py"
    yield "the mean of the last epochs is python -m asr_jax.average; training has an exponential moving average"


ICEFALL = System(
    "icefall",
    "icefall's Zipformer",
    r"zipformer/(train|finetune)\.py|--use-cr-ctc|--full-libri|--num-encoder-layers|--base-lr|--exp-dir",
    TABLE,
    _recipe,
    _derive,
    (Program(r"(^|/)zipformer\w*/train\.py", DEFAULTS), Program(r"^train\.py", DEFAULTS)),
)
