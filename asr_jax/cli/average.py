"""One set of weights of several checkpoints: `python -m asr_jax.average RUN --out DIR [--last N | --from A --to B]`.

DIR becomes a run of its own, with one checkpoint: evaluate, transcribe and --init-from take it as they take RUN. With
a name that ends in .safetensors the weights alone are written, for --init-from. With --names they have the names of
another system, for its own programs, and --out is a .pt file as these read it (icefall's decode.py, torch.load), a
.safetensors file, with --names nemo --like ORIGINAL.nemo a .nemo file, or with --names huggingface a folder as
transformers reads it. To have several checkpoints to average, train with --training.keep-last N or with
--training.milestones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse

if TYPE_CHECKING:
    from asr_jax.core.pytrees import Tree

FILES = (".safetensors", ".pt", ".nemo")


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Options of `asr_jax.average`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    out: Path
    """Folder to make, or file of weights to write."""
    last: Annotated[int, arg(metavar="N")] = 0
    """Average the newest N checkpoints; 0: all."""
    first: Annotated[int, arg(name="from", metavar="A")] = 0
    """Average checkpoints from update A on."""
    to: Annotated[int, arg(metavar="B")] = 0
    """Average checkpoints up to update B; 0: no limit."""
    weights: Literal["ema", "live"] = "ema"
    """Weights to take of each checkpoint: their exponential moving average, or the live ones."""
    names: Annotated[str, arg(metavar="SYSTEM")] = "ours"
    """Names of the weights in a file: ours, icefall, nemo, huggingface, deeplearningexamples, fairseq or keras."""
    like: Annotated[Path | None, arg(metavar="ORIGINAL.nemo")] = None
    """The .nemo file to copy everything but the weights from."""


def main(arguments: Sequence[str]) -> None:
    options = parse(AverageOptions, arguments, prog="python -m asr_jax.average", about=__doc__)
    is_file = options.out.suffix in FILES
    if options.names not in ("ours", "huggingface") and not is_file:
        raise UserError(f"--names {options.names} is for weights alone: expected --out NAME.safetensors, .pt or .nemo")
    if options.names == "ours" and is_file and options.out.suffix != ".safetensors":
        raise UserError(f"--out {options.out} is another system's kind of file: expected --names, or NAME.safetensors")
    if options.out.exists():
        raise UserError(f"--out {options.out} is there already: give another name")
    if min(options.last, options.first, options.to) < 0:
        raise UserError(f"--last {options.last}, --from {options.first}, --to {options.to}: expected 0 or more")

    from asr_jax.inference.averaging import choose, mean_weights, save_run

    chosen = choose(options.run, last=options.last, first=options.first, to=options.to)
    weights, told = mean_weights(options.run, chosen, live=options.weights == "live"), ""
    if is_file or options.names != "ours":
        told = _write(weights, options)
    else:
        save_run(options.run, chosen[-1], weights, options.out)
    kind = {"ema": "averaged", "live": "live"}[options.weights]
    print(f"{options.out}: the mean of the {kind} weights of checkpoints {', '.join(map(str, chosen))}{told}")


def _write(weights: Tree, options: AverageOptions) -> str:
    """Writes a file of weights, or a folder of Hugging Face's; gives what is to be said of their names."""
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
        save_exported(named, options.names, tokenizer.symbols, options.out, like=options.like)
    else:
        save_huggingface(weights, model, tokenizer.symbols, options.out)
    return f", by the names of {options.names}; of {tokenizer.vocab_size} labels {tokenizer.blank_id} is the blank"
