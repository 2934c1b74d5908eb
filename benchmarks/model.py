"""Benchmark of a model on one batch: `python -m benchmarks.model --config FILE [--rows 4 --seconds 8]`.

Measures the forward pass with the loss (in training mode), the training step (gradient and update) and their parts:
median and minimum of some repetitions. Prints the floating-point operations and bytes of the step, the rates of matrix
products and of copying on this machine in the same run, and the operations that take most of the time. The input is
random features of full length; `benchmarks.front_ends` and `benchmarks.steps` measure front-end and augmentation. With
`--peer`, measures the original in PyTorch in the same run, on the same device, with the same number of threads, on a
batch of the same size, in float32 or, if that is the precision of the config, in autocast to bfloat16, in the
environment of scripts/setup_reference.sh --peers, or with this Python if there is none. All fields of the config can be
set, as `--field VALUE`. Absolute figures depend on the machine and its load; compare ratios. FILE
of --json is written after each measurement.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable, write_whole

if TYPE_CHECKING:
    from asr_jax.config import Experiment

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / ".venv-reference/bin/python"
"""Python for the original; this Python is the other choice."""
SIDE = ROOT / "benchmarks/model_side.py"
PROG = "python -m benchmarks.model"
NUM_OPERATIONS = 5
"""Number of the operations with the largest shares of the time, here and in the original."""

PEERS = {
    "Zipformer": "icefall", "QuartzNet": "quartznet", "Squeezeformer": "squeezeformer", "Conformer": "parakeet",
    "W2VBert": "w2v_bert", "Wav2Vec2": "wav2vec2",
}  # fmt: skip
"""Original in benchmarks/model_side.py for each encoder, keyed by the class name of its settings."""
OF_ZIPFORMER = (
    "num_mels", "embed_channels", "downsampling", "dims", "num_layers", "unmasked_dims", "num_heads", "query_dims",
    "value_dims", "position_dims", "feedforward_dims", "kernel_sizes", "positions_dim", "output_downsampling",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of `benchmarks.model`."""

    rows: int = 4
    """Number of rows of the batch."""
    seconds: float = 8.0
    """Length of each row in seconds."""
    labels: int = 40
    """Number of labels of each row."""
    vocabulary: int = 500
    """Size of the vocabulary, with the blank."""
    repeats: int = 7
    """Number of repetitions of each measurement."""
    settling_s: float = 5.0
    """Seconds of calls before each measurement. glibc's heap grows in the first calls."""
    peer: bool = False
    """Also measure the original in PyTorch."""
    json: Path | None = None
    """File to write the figures to, in JSON."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(ModelOptions, arguments, prog=PROG, about=__doc__)
    if min(options.rows, options.labels, options.repeats) < 1 or options.vocabulary < 3 or not options.seconds > 0:
        raise UserError(
            f"--rows {options.rows}, --labels {options.labels}, --repeats {options.repeats}, --seconds "
            f"{options.seconds:g}, --vocabulary {options.vocabulary}: expected --seconds above 0, --vocabulary of at "
            "least 3, and at least 1 for the others"
        )
    if options.rows % experiment.model.sub_batches:
        raise UserError(
            f"--rows {options.rows}: expected a multiple of model.sub_batches, {experiment.model.sub_batches}, or "
            "--model.sub-batches 1"
        )
    peer = peer_of(experiment.model.encoder)
    if options.peer:
        _check_peer(type(experiment.model.encoder).__name__, peer)
    if options.json:
        check_writable(options.json)

    from asr_jax.cli.benchmark.systems import peak_bytes
    from asr_jax.core.devices import devices
    from benchmarks.stepping import Stepping, machine_rates

    stepping = Stepping(
        experiment, rows=options.rows, seconds=options.seconds, labels=options.labels, vocabulary=options.vocabulary
    )
    figures: dict[str, Any] = {
        "config": experiment.name, "device": devices()[0].device_kind, "threads": os.cpu_count(),
        "precision": experiment.training.precision, "rows": options.rows, "seconds": options.seconds,
        "labels": options.labels, "views": experiment.model.views, "load": os.getloadavg(),
    }  # fmt: skip

    def keep(**more: Any) -> None:
        figures.update(more)
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1) + "\n")

    times = stepping.times(options.repeats, settling_s=options.settling_s)
    keep(cost=stepping.cost(), times_s=times, peak_bytes=peak_bytes())
    if options.peer:
        theirs = {"name": peer} | _theirs(experiment, str(peer), options, stepping.num_frames)
        _check_same_size(figures["cost"]["parameters"], theirs["parameters"])
        again = stepping.times(options.repeats, settling_s=options.settling_s)  # the load may have been higher before
        times = {name: each + again[name] for name, each in times.items()}
        of_peer = {name: theirs[f"{name}_s"] for name in ("forward", "step")}
        factors = {name: median(each) / median(times[name]) for name, each in of_peer.items()}
        keep(times_s=times, peer=theirs | {"times_of_ours": factors})
    keep(rates=machine_rates(options.repeats), operations=stepping.operations(number=NUM_OPERATIONS))
    show(figures)


def show(figures: dict[str, Any]) -> None:
    """Prints the tables of all figures."""
    from asr_jax.observe.tables import print_table

    audio_s, cost, rates = figures["rows"] * figures["seconds"], figures["cost"], figures["rates"]
    all_times = dict(figures["times_s"])
    if peer := figures.get("peer"):
        print(f"a step of {peer['name']} takes {peer['times_of_ours']['step']:.2f} times as long as ours")
        all_times |= {f"{peer['name']} forward": peer["forward_s"], f"{peer['name']} step": peer["step_s"]}
    rows = [
        {"part": name, "median ms": f"{1000 * median(each):.1f}", "best ms": f"{1000 * min(each):.1f}",
         "audio-s/s": f"{audio_s / median(each):.1f}"}
        for name, each in all_times.items()
    ]  # fmt: skip
    print_table(
        rows,
        title=f"{figures['config']}: {figures['rows']} × {figures['seconds']:g} s, {figures['precision']}, "
        f"{cost['parameters']:,} parameters, on {figures['device']}, {figures['threads']} threads",
    )
    step_s = median(figures["times_s"]["step"])
    product_rate = rates["bf16" if figures["precision"] == "bf16" else "f32"]
    print_table(
        [
            {"step": "products, GFLOP", "amount": f"{cost['flops'] / 1e9:.2f}",
             "per second": f"{cost['flops'] / step_s / 1e9:.1f}", "this machine": f"{product_rate / 1e9:.1f}",
             "share": f"{cost['flops'] / step_s / product_rate:.1%}"},
            {"step": "bytes read and written, GB (estimate)", "amount": f"{cost['bytes'] / 1e9:.2f}",
             "per second": f"{cost['bytes'] / step_s / 1e9:.1f}", "this machine": f"{rates['copy'] / 1e9:.1f}",
             "share": f"{cost['bytes'] / step_s / rates['copy']:.1%}"},
            {"step": "temporary memory, GB", "amount": f"{cost['memory'] / 1e9:.2f}",
             "per second": "", "this machine": "", "share": ""},
        ],
        title=f"products of {rates['size']:,} × {rates['size']:,}: f32 {rates['f32'] / 1e9:.1f}, "
        f"bf16 {rates['bf16'] / 1e9:.1f} GFLOP/s; copying {rates['copy'] / 1e9:.1f} GB/s",
    )  # fmt: skip
    if figures["operations"]:
        print_table(
            [{"share": f"{each['share']:.1%}", "calls": each["calls"], "operation": each["name"]}
             for each in figures["operations"]],
            title="operations of the gradient, by share of the time of all operations (from a trace)",
        )  # fmt: skip
    else:
        print("operations: the trace of this device contains no names of operations")
    if peer and (of_peer := peer.get("operations")):
        print_table(
            [{"share": f"{each['share']:.1%}", "calls": each["calls"], "operation": each["name"]} for each in of_peer],
            title=f"operations of a step of {peer['name']}, by share of its time (PyTorch's profiler)",
        )


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def peer_of(encoder: Any) -> str | None:
    """Returns the name of the original of an encoder in model_side.py; None if there is none."""
    if getattr(encoder, "hourglass", None):
        return "nvidia_wav2vec2"  # transformers has none
    return PEERS.get(type(encoder).__name__)


def _check_peer(encoder: str, peer: str | None) -> None:
    if peer is None:
        raise UserError(
            f"--peer: {encoder} has no original in benchmarks/model_side.py; expected one of {', '.join(PEERS)}"
        )
    if not REFERENCE.exists() and not importlib.util.find_spec("torch"):
        raise UserError(f"--peer needs {REFERENCE.parent.parent}, or PyTorch: run scripts/setup_reference.sh --peers")


def _check_same_size(ours: int, theirs: int) -> None:
    """Checks that two models have the same number of parameters, up to 0.2 %.

    Icefall's has some hundreds more per million parameters: an unused bypass in each layer.

    Raises:
        RunError: If the numbers differ by more.
    """
    if abs(ours - theirs) > 0.002 * ours:
        raise RunError(
            f"the model of the config has {ours:,} parameters, but the original has {theirs:,}: they are not the same "
            "model. Only the sizes of the encoder are passed to the original; leave its other fields as published"
        )


def sizes_of(experiment: Experiment, peer: str) -> dict[str, Any]:
    """Arguments for the original's code that describe the encoder, with the names of that code."""
    encoder: Any = experiment.model.encoder  # `peer` determines its class.
    fields = asdict(encoder)
    if peer == "icefall":
        return {name: fields[name] for name in OF_ZIPFORMER}
    if peer == "quartznet":  # 5x5, 10x5 and 15x5 repeat each residual block 1, 2 and 3 times
        blocks = encoder.copies or max(block.copies for block in encoder.blocks)
        return {"blocks": blocks, "width_factor": encoder.width_factor}
    if peer == "wav2vec2":
        from asr_jax.pretrained import wav2vec2_huggingface

        is_frozen = encoder.extractor_gradient == 0
        return wav2vec2_huggingface.config_of(encoder, *experiment.model.heads.values()) | {"frozen": is_frozen}
    if peer == "nvidia_wav2vec2":
        from asr_jax.heads.contrastive import Contrastive

        glass, (head,) = encoder.hourglass, experiment.model.heads.values()
        if not isinstance(head, Contrastive):
            raise UserError(
                f"--peer: an hourglass encoder is compared in pre-training; expected a contrastive head, got {head}"
            )
        return {
            "hourglass_transformer": f"[{glass.before},({glass.middle},{glass.factor}),{glass.after}]",
            "hourglass_resample": glass.resample, "encoder_embed_dim": encoder.dim, "final_dim": head.dim,
            "encoder_ffn_embed_dim": encoder.feedforward_dim, "encoder_attention_heads": encoder.num_heads,
            "encoder_layerdrop": encoder.layer_drop, "num_negatives": head.num_negatives,
            "latent_vars": head.quantizer.entries, "latent_groups": head.quantizer.groups,
        }  # fmt: skip
    if peer == "w2v_bert":
        from asr_jax.pretrained.w2v_bert import config_of

        return config_of(encoder)
    if peer == "squeezeformer":
        first, last = encoder.reduced
        names = {"n_layers": "num_layers", "d_model": "dim", "n_heads": "num_heads", "conv_kernel_size": "kernel_size"}
        at = {"time_reduce_idx": first, "time_recovery_idx": last} if encoder.reduce_time else {}
    else:
        names = {"hidden_size": "dim", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
                 "conv_kernel_size": "kernel_size", "subsampling_factor": "subsampling_factor",
                 "num_mel_bins": "num_mels", "scale_input": "scale_input"}  # fmt: skip
        at = {"intermediate_size": encoder.feedforward_dim or 4 * encoder.dim,
              "subsampling_conv_channels": encoder.subsampling_channels or encoder.dim}  # fmt: skip
    return {theirs: fields[ours] for theirs, ours in names.items()} | at


def _theirs(experiment: Experiment, peer: str, options: ModelOptions, num_frames: int) -> dict[str, Any]:
    """Measures the original in PyTorch.

    Raises:
        RunError: If its program fails.
    """
    from asr_jax.core.devices import devices

    settings = {
        "peer": peer, "rows": options.rows, "frames": num_frames, "labels": options.labels,
        "sizes": sizes_of(experiment, peer),
        "vocabulary": options.vocabulary, "threads": os.cpu_count() or 1, "repeats": options.repeats,
        "settling_s": options.settling_s, "operations": NUM_OPERATIONS,
        "device": "cuda" if devices()[0].platform == "gpu" else "cpu", "precision": experiment.training.precision,
    }  # fmt: skip
    python = str(REFERENCE) if REFERENCE.exists() else sys.executable
    done = subprocess.run([python, str(SIDE), json.dumps(settings)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(
            f"{SIDE} failed: {done.stderr.strip().splitlines()[-1:]}; run scripts/setup_reference.sh --peers if "
            "files are missing in .peers"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
