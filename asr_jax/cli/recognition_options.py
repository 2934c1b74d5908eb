"""What commands that recognise have in common: which weights, in what precision and where, and how they decode."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.cli.command_line import field_flags, parse_fields
from asr_jax.config import load_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.inference.trained import Trained, load_trained, weights_of
from asr_jax.search.base import Decoding
from asr_jax.search.ctc import CTCDecoding
from asr_jax.transcripts.outputs import Maker

PREFIX = "--decoding."
DEVICES = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
ABOUT = """decoding: that of the run's validation, changed by --decoding.FIELD VALUE, such as
  --decoding.kind beam --decoding.beam-width 20 --decoding.fusion.kenlm lm.arpa --decoding.fusion.lm-weight 0.5
  --decoding.reranking.kenlm lm.arpa | --decoding.hot-words anna otto (last of all) | --decoding.lexicon words.txt
python -m asr_jax.train --config FILE --help lists all of them."""


def recognition_parser(*, epilog: str = ABOUT, **options: Any) -> argparse.ArgumentParser:
    """A parser with the common options; `options`: of `ArgumentParser`."""
    parser = argparse.ArgumentParser(
        epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
    )
    group = parser.add_argument_group("model")
    group.add_argument("--checkpoint", type=int, metavar="UPDATES", help="instead of the best by validation")
    group.add_argument("--live", action="store_true", help="the live weights instead of their average")
    group.add_argument("--precision", choices=("f32", "tf32", "bf16", "f16"), help="instead of that of training")
    group.add_argument("--device", choices=tuple(DEVICES), help="what to compute on, instead of the best there is")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the flags of the decoding, which stand anywhere among them. Sets the device.

    Raises: UserError for a device that is not there.
    """
    options, flags, others = parse_known(parser, arguments)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return options, flags


def parse_known(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str], list[str]]:
    """As `parse`, and the arguments that the parser does not know."""
    others, flags = _parted(arguments)
    options, others = parser.parse_known_args(others)
    if options.device:
        import jax

        jax.config.update("jax_platforms", DEVICES[options.device])
        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:  # the second where JAX has no support for it
            raise UserError(
                f"--device {options.device}: there is none that JAX can use: {error or 'it has no support for it'}"
            ) from error
    return options, flags, others


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments without the flags of the decoding and their values, and these: one value each, or, of a field with
    several, all up to the next flag."""
    several = {flag for flag in field_flags(_with_name(CTCDecoding())) if flag.endswith(("hot-words",))}
    others, flags = list[str](), list[str]()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith(PREFIX):
            others.append(argument)
            continue
        flags.append(argument)
        takes_several = any(flag.endswith(argument.replace("_", "-").rpartition(".")[2]) for flag in several)
        while "=" not in argument and rest and not rest[0].startswith("--"):
            flags.append(rest.pop(0))
            if not takes_several:
                break
    return others, flags


def _with_name(decoding: Decoding) -> Any:
    """Settings with one field, `decoding`, so that flags have that name before them."""
    return make_dataclass("_Named", [("decoding", type(decoding))], frozen=True)(decoding)


def decoding_of(flags: Sequence[str], default: Decoding) -> Decoding:
    """A decoding with the fields replaced that `parse` found.

    Raises: UserError that names all wrong ones.
    """
    if not flags:
        return default
    decoding: Decoding = parse_fields(flags, _with_name(default), prog="", of="the decoding").decoding
    return decoding


def head_option(parser: argparse.ArgumentParser, *, are_several: bool) -> None:
    """Adds `--head`."""
    several = {"nargs": "+", "default": [""]} if are_several else {"default": ""}
    said = "heads to find texts by, a row of the table each" if are_several else "head to find texts by"
    parser.add_argument("--head", metavar="NAME", help=f"{said}; that of the run's validation", **several)


def load(run: Path, options: argparse.Namespace) -> Trained:
    """The run, or the checkpoint `RUN/checkpoints/N`, as the options say. Raises: as `load_trained`."""
    folder, updates = _chosen(run, options)
    return load_trained(folder, updates=updates, precision=options.precision, live=options.live)


def maker_of(run: Path, options: argparse.Namespace, flags: Sequence[str] | None) -> Maker:
    """Of transcripts, without loading the weights. `flags`: of the decoding; None: of alignments.

    Raises: UserError where the folder is not a run or has no such checkpoint.
    """
    folder, updates = _chosen(run, options)
    experiment = load_experiment(folder / EXPERIMENT)
    head = "" if flags is None else getattr(options, "head", "") or experiment.model.recognising
    decoding = None if flags is None else decoding_of(flags, experiment.model.decoding_of(head))
    return {
        "run": str(folder.resolve()),
        "checkpoint": checkpoint_to_evaluate(folder / CHECKPOINTS, updates),
        "weights": weights_of(experiment, live=options.live),
        **({"head": head} if head else {}),
        "decoding": str(decoding or "alignment"),
        "digest": decoding.digest() if decoding else "alignment",
    }


def uncalibrated(run: Path, options: argparse.Namespace, flags: Sequence[str]) -> str:
    """Says so, and how that is mended: a calibration is of a checkpoint, a kind of weights and a decoding."""
    given = [] if options.checkpoint is None else ["--checkpoint", str(options.checkpoint)]
    command = shlex.join([str(run), *given, *["--live"] * options.live, *flags])
    return (
        "confidences are the model's own, not calibrated; to fit them to what is right in data that it was not trained "
        f"on: python -m asr_jax.evaluate {command} --calibrate --data VALIDATION"
    )


def _chosen(run: Path, options: argparse.Namespace) -> tuple[Path, int | None]:
    """The run's folder and, where one is named, its checkpoint."""
    updates = options.checkpoint
    if run.parent.name == CHECKPOINTS and run.name.isdecimal():
        if updates is not None:
            raise UserError(f"{run} is a checkpoint, and --checkpoint {updates} names another: expected one of them")
        run, updates = run.parent.parent, int(run.name)
    return run, updates
