"""Mean of the weights of several checkpoints: `python -m asr_jax.average RUN --out DIR [--last N | --from A --to B]`.

DIR becomes a run with one checkpoint, which evaluate, transcribe and --init-from accept. If --out ends in .safetensors,
only the weights are written, for --init-from. --names SYSTEM renames the weights for the programs of another system;
--out is then a .pt file (read by torch.load and icefall's decode.py), a .safetensors file, a .nemo file (with --names
nemo --like ORIGINAL.nemo), or a folder for transformers (--names huggingface) or FunASR (--names funasr). To keep
several checkpoints of a run, train with --training.saving.keep-last N or --training.saving.milestones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.core.settings import NonNegativeInt, command_options

FILES = (".safetensors", ".pt", ".nemo")


@command_options
class AverageOptions:
    """Options of `asr_jax.average`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    out: Path
    """Folder or file of weights to write."""
    last: Annotated[NonNegativeInt, arg(metavar="N")] = 0
    """Number of newest checkpoints to average; 0: all."""
    first: Annotated[NonNegativeInt, arg(name="from", metavar="A")] = 0
    """First update whose checkpoint is averaged."""
    to: Annotated[NonNegativeInt, arg(metavar="B")] = 0
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
    from asr_jax.inference.exporting import FOLDERS, OURS, write_model  # imported late, since --help does not need it

    is_file = options.out.suffix in FILES
    if options.names not in (OURS, *FOLDERS) and not is_file:
        raise UserError(f"--names {options.names} writes only weights: expected --out NAME.safetensors, .pt or .nemo")
    if options.names == OURS and is_file and options.out.suffix != ".safetensors":
        raise UserError(
            f"--out {options.out} is a file format of another system: expected --names SYSTEM, or NAME.safetensors"
        )
    if options.out.exists():
        raise UserError(f"--out {options.out} already exists: choose another name")

    from asr_jax.config import load_experiment
    from asr_jax.core.devices import say_devices
    from asr_jax.core.run_folder import EXPERIMENT, TOKENIZER
    from asr_jax.inference.averaging import choose, mean_weights, save_run
    from asr_jax.inference.importing import run_and_checkpoint
    from asr_jax.text.tokenizers import load_tokenizer

    say_devices()
    run, about_names = run_and_checkpoint(options.run)[0], ""
    model = load_experiment(run / EXPERIMENT).model
    chosen = choose(run, last=options.last, first=options.first, to=options.to)
    weights = mean_weights(run, chosen, live=options.weights == "live")
    if is_file or options.names != OURS:
        tokenizer = load_tokenizer(run / TOKENIZER)
        write_model(weights, model, tokenizer, names=options.names, out=options.out, like=options.like)
        if options.names != OURS:
            blank = f"label {tokenizer.blank_id} of {tokenizer.vocab_size} is the blank"
            about_names = f", with the names of {options.names}; {blank}"
    else:
        save_run(run, chosen[-1], weights, options.out)
    kind = {"ema": "averaged", "live": "live"}[options.weights]
    print(f"{options.out}: the mean of the {kind} parameters of checkpoints {', '.join(map(str, chosen))}{about_names}")
