"""Writes a run for other programs: `python -m asr_jax.export RUN --to FORMAT --out PATH`.

onnx: a folder with ONNX files, whose input is samples; onnxruntime runs them. sherpa-onnx: a folder with ONNX files and
tokens.txt. stablehlo: a folder with programs that run with JAX alone. safetensors: a file of weights, for --init-from.
icefall, nemo, huggingface, funasr, fairseq, deeplearningexamples, caiman, keras, rust: weights with the names of a
system, in a .pt or .safetensors file, in a .nemo file (with --like ORIGINAL.nemo), or in a folder (huggingface,
funasr).

Files of programs are run on a recording after they are written, and the largest difference from the run is printed.
If it is more than rounding explains, the command fails (documentation: export). --weights f32 int8 writes a
second file whose products of matrices have weights of 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.cli.context_options import ContextOptions
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import command_options


@command_options
class ExportOptions(ContextOptions):
    """Options of `asr_jax.export`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run, or a checkpoint, as RUN/checkpoints/N."""
    to: Annotated[str, arg(metavar="FORMAT")]
    """Format: onnx, sherpa-onnx, stablehlo, safetensors, icefall, nemo, huggingface, funasr, fairseq,
    deeplearningexamples, caiman, keras or rust."""
    out: Annotated[Path, arg(metavar="PATH")]
    """Folder or file to write."""
    weights: tuple[Literal["f32", "f16", "int8"], ...] = ("f32",)
    """Types of the weights in ONNX files, each in a file of its own."""
    recording: Annotated[UserPath, arg(metavar="AUDIO")] = ""
    """Audio file that the written files are tried with. Default: one of the run's validation set."""
    head: Annotated[str, arg(metavar="NAME")] = ""
    """Head of the model. Default: the primary head; for formats of weights, all heads."""
    checkpoint: Annotated[int | None, arg(metavar="UPDATES")] = None
    """Number of updates of the checkpoint. Default: the checkpoint with the best validation."""
    live: bool = False
    """Use the live parameters instead of the averaged ones."""
    streaming: bool = False
    """Write files that read windows of a stream, with the state of the encoder as inputs and outputs (onnx,
    sherpa-onnx, stablehlo)."""
    like: Annotated[Path | None, arg(metavar="ORIGINAL.nemo")] = None
    """The .nemo file from which everything except the weights is copied."""


def main(arguments: Sequence[str]) -> None:
    options = parse(ExportOptions, arguments, prog="python -m asr_jax.export", about=__doc__)

    from asr_jax.core.devices import say_devices
    from asr_jax.exporting.targets import export
    from asr_jax.inference.importing import run_and_checkpoint
    from asr_jax.inference.trained import load_trained

    folder, updates = run_and_checkpoint(options.run, options.checkpoint)
    say_devices()
    trained = load_trained(folder, updates=updates, precision="f32", live=options.live, context=options.context)
    lines = export(
        trained,
        options.out,
        to=options.to,
        head=options.head,
        weights=options.weights,
        recording=options.recording,
        like=options.like,
        streaming=options.streaming,
    )
    for line in lines:
        print(line, flush=True)
