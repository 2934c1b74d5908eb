"""icefall's recipe egs/*/ASR/zipformer (train.py and asr_datamodule.py at commit 36e0420c)."""

from collections.abc import Iterator, Mapping
from typing import Any

from asr_jax.audio.specaugment import SpecAugment, TimeWarp
from asr_jax.config import Experiment
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.migration.changes import Change
from asr_jax.migration.engine import Given, Program, System
from asr_jax.migration.rows import PART, Absent, NotNeeded, Row, numbers, to
from asr_jax.models.encoder import contexts_of
from asr_jax.nn.decoders.label_decoder import LabelDecoder

ENCODER, HEAD = "model.encoder", "model.heads.transducer"
SIZES = {
    "--num-encoder-layers": "num_layers", "--downsampling-factor": "downsampling",
    "--feedforward-dim": "feedforward_dims", "--num-heads": "num_heads", "--encoder-dim": "dims",
    "--query-head-dim": "query_dims", "--value-head-dim": "value_dims", "--pos-head-dim": "position_dims",
    "--encoder-unmasked-dim": "unmasked_dims", "--cnn-module-kernel": "kernel_sizes",
}  # fmt: skip
ROWS: Mapping[str, Row] = {
    " ".join(SIZES): PART,
    "--pos-dim": f"{ENCODER}.positions_dim",
    **to(f"{HEAD}.prediction", "--decoder-dim=dim --context-size=context"),
    "--joiner-dim": f"{HEAD}.joint_dim",
    **to(f"{HEAD}.pruning",
         "--prune-range=size --lm-scale=language_scale --am-scale=acoustic_scale --simple-loss-scale=simple_scale"),
    "--attention-decoder-dim --attention-decoder-num-layers --attention-decoder-attention-dim "
    "--attention-decoder-num-heads --attention-decoder-feedforward-dim --attention-decoder-loss-scale": PART,
    "--use-transducer --use-ctc --use-attention-decoder --use-cr-ctc --ctc-loss-scale --cr-loss-scale": PART,
    "--causal --chunk-size --left-context-frames --world-size --max-duration --ref-duration": PART,
    "--use-fp16 --use-bf16 --full-libri --mini-libri --manifest-dir": PART,
    "--enable-spec-aug --spec-aug-time-warp-factor --time-mask-ratio --enable-musan": PART,
    "--master-port": NotNeeded("one process uses all devices (documentation: several-machines)"),
    "--tensorboard": NotNeeded("RUN has the files of TensorBoard"),
    "--num-epochs": "training.num_epochs",
    "--start-epoch --start-batch": NotNeeded("training into the folder of a run continues it"),
    "--exp-dir": "run_dir",
    "--bpe-model|--lang-dir": "data.tokenizer.path",
    **to("optim.schedule", "--base-lr=peak_lr --lr-batches=decay_updates --lr-epochs=decay_epochs"),
    "--seed": "seed",
    "--print-diagnostics": NotNeeded("events.jsonl has the norms of gradients; plan and observe.health describe a run"),
    "--inf-check": NotNeeded("an update with non-finite values is voided and named"),
    **to("training.saving", "--save-every-n=every_updates --keep-last-k=keep_last"),
    "--average-period": NotNeeded("the parameters are averaged in every update (training.ema)"),
    "--bucketing-sampler": Absent("batches are always of one bucket", ("true", "1")),
    "--num-buckets": "data.batching.num_buckets",
    "--concatenate-cuts": Absent("utterances are not concatenated"),
    "--duration-factor --gap": NotNeeded("they belong to --concatenate-cuts"),
    "--on-the-fly-feats --return-cuts --input-strategy":
        NotNeeded("features are computed on the device from the audio"),
    "--shuffle": Absent("batches are shuffled; data.batching.sort_window sorts", ("true", "1")),
    "--drop-last": NotNeeded("padding rows fill the last batch"),
    "--num-workers": "data.workers",
}  # fmt: skip
DEFAULTS = (
    "--use-transducer true --use-ctc false --use-cr-ctc false --use-attention-decoder false --world-size 1 "
    "--num-epochs 30 --base-lr 0.045 --lr-batches 7500 --lr-epochs 3.5 --ref-duration 600 --seed 42 "
    "--use-fp16 false --use-bf16 false --max-duration 200 --enable-spec-aug true --enable-musan true "
    "--ctc-loss-scale 0.2 --cr-loss-scale 0.2 --time-mask-ratio 2.5 --attention-decoder-loss-scale 0.8 "
    "--full-libri true --save-every-n 4000"
)


def _recipe(given: Given) -> str:
    return "zipformer_transducer" if given.is_on("--use-transducer") else "zipformer"


def _derive(given: Given, base: Experiment) -> Iterator[Change | str]:
    seconds = given.count("--world-size", 1) * given.number("--max-duration", 200)
    yield Change("data.batching.budget", float(seconds), "--max-duration × --world-size")
    share = seconds / given.number("--ref-duration", 600)
    yield Change(f"{ENCODER}.batches_per_update", share, "--max-duration --world-size --ref-duration")
    rows = {name: given.read(name, numbers) for name in SIZES if name in given}
    num = len(rows.get("--encoder-dim") or base.model.encoder.dims)  # type: ignore[attr-defined]
    for name, values in rows.items():
        yield Change(f"{ENCODER}.{SIZES[name]}", values * (num if len(values) == 1 else 1), name)
    if given.is_on("--causal"):
        chunks = [None if each < 0 else each for each in given.read("--chunk-size", numbers, (16, 32, 64, -1))]
        left = [None if each < 0 else each for each in given.read("--left-context-frames", numbers, (64, 128, 256, -1))]
        yield Change(f"{ENCODER}.causal", True, "--causal")
        contexts = contexts_of(tuple(chunks), tuple(left))
        yield Change(f"{ENCODER}.contexts", contexts, "--chunk-size --left-context-frames")
    yield from _heads(given, base)
    yield from _augmentation(given)
    precision = "f16" if given.is_on("--use-fp16") else "bf16" if given.is_on("--use-bf16") else "f32"
    yield Change("training.precision", precision, "--use-fp16 --use-bf16")
    is_mini = given.is_on("--mini-libri")
    if "--manifest-dir" in given:
        yield Change("data.train", (given.get("--manifest-dir"),), "--manifest-dir")
        yield "data.train: lhotse's cuts of recordings are read; of precomputed features, the recordings are needed"
    else:
        name = "train-clean-5" if is_mini else "train-960" if given.is_on("--full-libri") else "train-clean-100"
        path = base.data.train[0].replace("train-960", name)
        yield Change("data.train", (path,), "--full-libri --mini-libri")


def _heads(given: Given, base: Experiment) -> Iterator[Change | str]:
    of_heads = ("--use-transducer", "--use-ctc", "--use-cr-ctc", "--use-attention-decoder")
    with_transducer, with_ctc, with_cr, with_decoder = map(given.is_on, of_heads)
    heads, names = dict[str, Any](), " ".join(of_heads)
    if with_transducer:
        heads["transducer"] = base.model.heads["transducer"]
    if with_ctc:
        # CR-CTC alone has the scale of CTC 1 in icefall's commands only if nothing else is trained
        scale = given.real("--ctc-loss-scale", 0.2) if with_transducer or with_decoder else 1.0
        cr = given.real("--cr-loss-scale", 0.2) / scale if with_cr else 0.0
        heads["ctc"] = CTC(dropout=0.1, scale=scale, consistency=round(cr, 6))
        names += " --ctc-loss-scale" * (with_transducer or with_decoder) + " --cr-loss-scale" * with_cr
    if with_decoder:
        sizes = {"dim": 512, "num_layers": 6, "attention_dim": 512, "num_heads": 8, "feedforward_dim": 2048}
        names_of_sizes = {name: f"--attention-decoder-{name.replace('_', '-')}" for name in sizes}
        decoder = LabelDecoder(**{name: given.number(names_of_sizes[name], usual) for name, usual in sizes.items()})
        scale = given.real("--attention-decoder-loss-scale", 0.8)
        heads["attention"] = AttentionDecoder(scale=scale, decoder=decoder, ctc="ctc" if with_ctc else "")
        names += " --attention-decoder-loss-scale"
    yield Change("model.heads", heads, names)
    if len(heads) > 1:
        yield Change("model.primary", "transducer" if with_transducer else "attention", "--use-transducer")
    if with_cr:
        yield Change("model.views", 2, "--use-cr-ctc")


def _augmentation(given: Given) -> Iterator[Change | str]:
    with_cr = given.is_on("--use-cr-ctc")
    ratio = given.real("--time-mask-ratio", 2.5)
    masks = SpecAugment(num_time_masks=int(10 * ratio), max_time_share=0.15 * ratio) if with_cr else SpecAugment()
    if given.is_on("--enable-spec-aug") or with_cr:
        frames = given.number("--spec-aug-time-warp-factor", 80)
        warp = (TimeWarp(max_frames=frames),) if frames > 0 else ()
        names = "--use-cr-ctc --time-mask-ratio" if with_cr else "--enable-spec-aug"
        yield Change("model.augment", (*warp, masks), f"{names} --spec-aug-time-warp-factor")
    else:
        yield Change("model.augment", (), "--enable-spec-aug")
    if given.is_on("--enable-musan"):
        yield (
            "--enable-musan: there is no noise without recordings: add BackgroundNoise(probability=0.5, "
            "folder=MUSAN, …) to model.augment, as in configs/zipformer.py"
        )


ICEFALL = System(
    "icefall",
    "icefall's Zipformer",
    r"zipformer/(train|finetune)\.py|--use-cr-ctc|--full-libri|--num-encoder-layers|--base-lr|--exp-dir",
    ROWS,
    _recipe,
    _derive,
    (Program("zipformer*/train.py, /train.py", DEFAULTS),),
)
