"""Mean of the weights of several checkpoints: `python -m asr_jax.average RUN --out DIR [--last N | --from A --to B]`.

DIR becomes a run with one checkpoint, which evaluate, transcribe and --init-from accept. If --out ends in .safetensors,
only the weights are written, for --init-from. --names SYSTEM renames the weights for the programs of another system;
--out is then a .pt file (read by torch.load and icefall's decode.py), a .safetensors file, a .nemo file (with --names
nemo --like ORIGINAL.nemo), or a folder for transformers (--names huggingface) or FunASR (--names funasr). To keep
several checkpoints of a run, train with --training.keep-last N or --training.milestones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse

if TYPE_CHECKING:
    from asr_jax.core.pytrees import Tree

FILES = (".safetensors", ".pt", ".nemo")
FOLDERS = ("huggingface", "funasr")
"""Systems whose models are folders."""


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Options of `asr_jax.average`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    out: Path
    """Folder or file of weights to write."""
    last: Annotated[int, arg(metavar="N")] = 0
    """Number of newest checkpoints to average; 0: all."""
    first: Annotated[int, arg(name="from", metavar="A")] = 0
    """First update whose checkpoint is averaged."""
    to: Annotated[int, arg(metavar="B")] = 0
    """Last update whose checkpoint is averaged; 0: no limit."""
    weights: Literal["ema", "live"] = "ema"
    """Weights of each checkpoint: the exponential moving average (ema) or the live parameters."""
    names: Annotated[str, arg(metavar="SYSTEM")] = "ours"
    """Naming of the weights: ours, icefall, nemo, huggingface, funasr, deeplearningexamples, fairseq, caiman or
    keras."""
    like: Annotated[Path | None, arg(metavar="ORIGINAL.nemo")] = None
    """The .nemo file from which everything except the weights is copied."""


def main(arguments: Sequence[str]) -> None:
    options = parse(AverageOptions, arguments, prog="python -m asr_jax.average", about=__doc__)
    is_file = options.out.suffix in FILES
    if options.names not in ("ours", *FOLDERS) and not is_file:
        raise UserError(f"--names {options.names} writes only weights: expected --out NAME.safetensors, .pt or .nemo")
    if options.names == "ours" and is_file and options.out.suffix != ".safetensors":
        raise UserError(
            f"--out {options.out} is a file format of another system: expected --names SYSTEM, or NAME.safetensors"
        )
    if options.out.exists():
        raise UserError(f"--out {options.out} already exists: choose another name")
    if min(options.last, options.first, options.to) < 0:
        raise UserError(f"--last {options.last}, --from {options.first}, --to {options.to}: expected 0 or more")

    from asr_jax.core.devices import say_devices
    from asr_jax.inference.averaging import choose, mean_weights, save_run
    from asr_jax.inference.importing import run_and_checkpoint

    say_devices()
    options = replace(options, run=run_and_checkpoint(options.run)[0])
    chosen = choose(options.run, last=options.last, first=options.first, to=options.to)
    weights, about_names = mean_weights(options.run, chosen, live=options.weights == "live"), ""
    if is_file or options.names != "ours":
        about_names = _write(weights, options)
    else:
        save_run(options.run, chosen[-1], weights, options.out)
    kind = {"ema": "averaged", "live": "live"}[options.weights]
    print(f"{options.out}: the mean of the {kind} parameters of checkpoints {', '.join(map(str, chosen))}{about_names}")


def _write(weights: Tree, options: AverageOptions) -> str:
    """Writes a file of weights, or a folder for transformers; returns a description of their names."""
    from asr_jax.config import load_experiment
    from asr_jax.core.run_folder import EXPERIMENT, TOKENIZER
    from asr_jax.pretrained.formats import exported, save_exported, save_huggingface, save_weights
    from asr_jax.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(options.run / TOKENIZER)
    if options.names == "ours":
        save_weights(weights, tokenizer.symbols, options.out)
        return ""
    model = load_experiment(options.run / EXPERIMENT).model
    if options.out.suffix in FILES:
        named = exported(weights, model, options.names)
        save_exported(named, model, options.names, tokenizer.symbols, options.out, like=options.like)
    elif options.names == "funasr":
        from asr_jax.pretrained.funasr_folder import save_folder

        save_folder(exported(weights, model, "funasr"), model, tokenizer, options.out)
    else:
        save_huggingface(weights, model, tokenizer.symbols, options.out)
    return f", with the names of {options.names}; label {tokenizer.blank_id} of {tokenizer.vocab_size} is the blank"
