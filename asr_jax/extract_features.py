"""Audio to ready features in Parquet: `python -m asr_jax.extract_features --input IN … --output OUT`.

The features are those that training would compute, by the same compiled front-end; `--data.train OUT` trains on them.
An interrupted call goes on where it was: what is done is kept in parts beside OUT until a file is whole.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asr_jax.command_line import load_config, run_command
from asr_jax.config import load_experiment
from asr_jax.core.errors import RunError, UserError


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.extract_features", description=__doc__)
    parser.add_argument(
        "--input", nargs="+", action="extend", required=True, metavar="IN", help="any data that is read"
    )
    parser.add_argument(
        "--output", type=Path, required=True,
        help="a .parquet file or, where an input is a folder, a folder: NNNN-NAME.parquet for each file in it",
    )  # fmt: skip
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--config", help="whose front-end is used; by default Kaldi's filter bank of 80")
    of.add_argument("--run", type=Path, help="folder of a run whose front-end is used")
    parser.add_argument("--tokenizer", default="", metavar="PATH", help="also write token ids: as data.tokenizer.path")
    parser.add_argument("--normaliser", default="lower.v1", help="of the texts before they are tokenised (%(default)s)")
    parser.add_argument("--max-duration-s", type=float, default=30.0, help="longer ones are left out (%(default)s)")
    parser.add_argument("--max-samples", type=int, default=0, help="only the first so many of each input")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes that read audio; 0: threads")
    options = parser.parse_args(arguments)

    from asr_jax.data.inputs import resolve

    extractor = _extractor(options)
    if any(os.path.isdir(path) for path in options.input):
        groups = [
            (options.output / f"{number:04}-{Path(path).name.partition('.')[0]}.parquet", [path])
            for number, (_, path, _) in enumerate(resolve(options.input))
        ]
    elif options.output.suffix == ".parquet":
        groups = [(options.output, options.input)]
    else:
        raise UserError(f"--output {options.output}: expected a name that ends in .parquet")
    try:
        left_out = sum(extractor(out, paths) for out, paths in groups)
    except KeyboardInterrupt:
        print("what is done is kept: the same command goes on with the rest", file=sys.stderr)
        raise
    if left_out:
        raise RunError(f"{left_out} records were left out; they are named in *.skipped.jsonl beside the output")


def _extractor(options: Any) -> Callable[..., int]:
    """What extracts the features of some inputs into one file, and gives how many records it left out."""
    from asr_jax.audio.features import KaldiFbank
    from asr_jax.data.extraction import extract
    from asr_jax.text.tokenizer import TokenizerSettings, given_tokenizer

    experiment = load_config(options.config) if options.config else None
    if options.run:
        experiment = load_experiment(options.run / "experiment.json")
    front_end = experiment.model.front_end if experiment else KaldiFbank()
    tokenizer = None
    if options.tokenizer:
        tokenizer = given_tokenizer(TokenizerSettings(path=options.tokenizer, normaliser=options.normaliser))

    return functools.partial(
        extract, front_end=front_end, tokenizer=tokenizer, max_duration_s=options.max_duration_s,
        max_samples=options.max_samples, workers=options.jobs,
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
