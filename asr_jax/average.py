"""One set of weights of several checkpoints: `python -m asr_jax.average RUN --out DIR [--last N | --from A --to B]`.

DIR becomes a run of its own, with one checkpoint: evaluate, transcribe and --init-from take it as they take RUN. With a
name that ends in .safetensors the weights alone are written, for --init-from, and with --names by the names of another
system, for its own programs: `--last 1 --names nemo --out model.safetensors`, then there
`model.load_state_dict(safetensors.torch.load_file("model.safetensors"), strict=False)`. To have several checkpoints to
average, train with --training.keep-last N or with --training.milestones.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from asr_jax.command_line import run_command
from asr_jax.core.errors import UserError


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.average", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, required=True, help="folder to make, or NAME.safetensors")
    parser.add_argument("--last", type=int, default=0, metavar="N", help="the newest N checkpoints; 0: all")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="A", help="checkpoints from update A on")
    parser.add_argument("--to", type=int, default=0, metavar="B", help="checkpoints up to update B; 0: no limit")
    parser.add_argument(
        "--weights", choices=("ema", "live"), default="ema", help="of each the averaged weights, or the live ones"
    )
    parser.add_argument(
        "--names", default="ours", metavar="WHOSE",
        help="whose names weights in a file have: ours, icefall, nemo, huggingface, deeplearningexamples, keras (ours)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.names != "ours" and options.out.suffix != ".safetensors":
        raise UserError(f"--names {options.names} is for weights alone: expected --out NAME.safetensors")
    if options.out.exists():
        raise UserError(f"--out {options.out} is there already: give another name")
    if min(options.last, options.first, options.to) < 0:
        raise UserError(f"--last {options.last}, --from {options.first}, --to {options.to}: expected 0 or more")

    from asr_jax.config import load_experiment
    from asr_jax.pretrained.formats import exported, save_weights
    from asr_jax.text.tokenizer import load_tokenizer
    from asr_jax.training.averaging import choose, mean_weights, save_run
    from asr_jax.training.run import EXPERIMENT, TOKENIZER

    chosen = choose(options.run, last=options.last, first=options.first, to=options.to)
    weights = mean_weights(options.run, chosen, live=options.weights == "live")
    kind = {"ema": "averaged", "live": "live"}[options.weights]
    told = f"{options.out}: the mean of the {kind} weights of checkpoints {', '.join(map(str, chosen))}"
    if options.out.suffix != ".safetensors":
        save_run(options.run, chosen[-1], weights, options.out)
    else:
        tokenizer = load_tokenizer(options.run / TOKENIZER)
        if options.names != "ours":
            weights = exported(weights, load_experiment(options.run / EXPERIMENT).model, options.names)
            told += (
                f", by the names of {options.names}; label {tokenizer.blank_id} of {tokenizer.vocab_size} is the blank"
            )
        save_weights(weights, tokenizer.symbols, options.out)
    print(told)


if __name__ == "__main__":
    run_command(main)
