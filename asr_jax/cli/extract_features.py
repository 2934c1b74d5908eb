"""Audio to ready features in Parquet: `python -m asr_jax.extract_features --input IN … --output OUT`.

The features are those that training would compute, by the same compiled front-end; `--data.train OUT` trains on them.
`RUN --layer 6` writes what a layer of a trained encoder gives instead, `RUN --codes` the codes of a pre-trained one's
quantiser, a number for each group and frame.
An interrupted call goes on where it was: what is done is kept in parts beside OUT until a file is whole.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asr_jax.cli.command_line import load_config
from asr_jax.config import load_experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.run_folder import EXPERIMENT


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
    of.add_argument("trained", nargs="?", type=Path, metavar="RUN", help="as --run, first of all arguments")
    of.add_argument("--config", help="whose front-end is used; by default Kaldi's filter bank of 80")
    of.add_argument("--run", type=Path, help="folder of a run, or a checkpoint, whose front-end or weights are used")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--layer", help="of RUN's encoder: its number, from 0, another of its taps, such as features, or output"
    )
    what.add_argument("--codes", action="store_true", help="of RUN's quantiser")
    parser.add_argument("--tokenizer", default="", metavar="PATH", help="also write token ids: as data.tokenizer.path")
    parser.add_argument("--normaliser", default="lower.v1", help="of the texts before they are tokenised (%(default)s)")
    parser.add_argument("--max-duration-s", type=float, default=30.0, help="longer ones are left out (%(default)s)")
    parser.add_argument("--max-samples", type=int, default=0, help="only the first so many of each input")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes that read audio; 0: threads")
    parser.set_defaults(checkpoint=None, live=False, precision=None)  # RUN/checkpoints/N names another checkpoint
    options = parser.parse_args(arguments)
    options.run = options.run or options.trained
    if (options.layer or options.codes) and not options.run:
        raise UserError("--layer and --codes are of a trained run: expected asr_jax.extract_features RUN --layer …")
    if not options.max_duration_s > 0 or options.max_samples < 0 or options.jobs < 0:
        raise UserError(
            f"--max-duration-s {options.max_duration_s:g}, --max-samples {options.max_samples}, --jobs {options.jobs}: "
            "expected more than 0, and 0 or more of the others"
        )

    extractor = _extractor(options)
    groups = _groups(options.input, options.output)
    try:
        unread = sum(extractor(out, paths) for out, paths in groups)
    except KeyboardInterrupt:
        print("what is done is kept: the same command goes on with the rest", file=sys.stderr)
        raise
    if unread:
        raise RunError(f"{unread} records cannot be used; they are named in *.skipped.jsonl beside the output")


def _groups(inputs: Sequence[str], output: Path) -> list[tuple[Path, Sequence[str]]]:
    """Each file to write, and the inputs that go into it.

    Raises: UserError for an output that is no .parquet file, or a folder with others than those that will be written.
    """
    from asr_jax.data.manifests.inputs import resolve

    if not any(os.path.isdir(path) for path in inputs):
        if output.suffix != ".parquet":
            raise UserError(f"--output {output}: expected a name that ends in .parquet")
        return [(output, inputs)]
    groups: list[tuple[Path, Sequence[str]]] = [
        (output / f"{number:04}-{Path(path).name.partition('.')[0]}.parquet", [path])
        for number, (_, path, _) in enumerate(resolve(inputs))
    ]
    others = sorted({path.name for path in output.glob("*.parquet")} - {out.name for out, _ in groups})
    if others:
        raise UserError(
            f"--output {output} holds {', '.join(others[:5])}{' …' * (len(others) > 5)}, which are not made of these "
            "inputs, and training on the folder would read them too: delete them, or give another --output"
        )
    return groups


def _extractor(options: Any) -> Callable[..., int]:
    """What extracts the features of some inputs into one file, and gives how many records cannot be used."""
    from asr_jax.data.loading.extraction import extract
    from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer

    tokenizer = None
    if options.tokenizer:
        tokenizer = given_tokenizer(TokenizerSettings(path=options.tokenizer, normaliser=options.normaliser))

    return functools.partial(
        extract, extractor=_frames(options), tokenizer=tokenizer, max_duration_s=options.max_duration_s,
        max_samples=options.max_samples, workers=options.jobs,
    )  # fmt: skip


def _frames(options: Any) -> Any:
    """What makes the frames."""
    from asr_jax.audio.features import KaldiFbank
    from asr_jax.data.loading.extraction import Extractor

    if options.layer or options.codes:
        from asr_jax.cli.recognition_options import load
        from asr_jax.inference.extractors import of_codes, of_layer

        trained = load(options.run, options)
        return of_codes(trained) if options.codes else of_layer(trained, options.layer)
    experiment = load_config(options.config) if options.config else None
    if options.run:
        experiment = load_experiment(options.run / EXPERIMENT)
    return Extractor.of_front_end(experiment.model.front_end if experiment else KaldiFbank())
