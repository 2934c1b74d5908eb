"""Options of commands that recognise or align speech: weights, precision, device and decoding."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
from tyro.conf import arg

from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.cli.command_line import field_flags, parse_fields
from asr_jax.config import load_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.core.precision import Precision
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.inference.trained import Trained, load_trained, weights_of
from asr_jax.search.base import Decoding
from asr_jax.search.ctc import CTCDecoding
from asr_jax.transcripts.outputs import Maker

PREFIX = "--decoding."
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
ABOUT_DECODING = """

Decoding: that of the run's validation, changed by --decoding.FIELD VALUE, such as

  --decoding.kind beam --decoding.beam-width 20
  --decoding.fusion.kenlm lm.arpa --decoding.fusion.lm-weight 0.5
  --decoding.reranking.kenlm lm.arpa
  --decoding.hot-words anna otto (last of all)
  --decoding.lexicon words.txt

python -m asr_jax.train --config FILE --help lists all of them."""


@dataclass(frozen=True, kw_only=True)
class RecognitionOptions:
    """Which weights, in what precision and where."""

    checkpoint: Annotated[int | None, arg(metavar="UPDATES")] = None
    """Checkpoint, by its number of updates. Default: the best by validation."""
    live: bool = False
    """Use the live weights instead of their average."""
    precision: Precision | None = None
    """Precision to compute in. Default: that of training."""
    device: Literal["cpu", "gpu", "tpu"] | None = None
    """Device to compute on. Default: the best that is present."""


def parse_recognition[Options: RecognitionOptions](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None
) -> tuple[Options, list[str]]:
    """The options, and the flags of the decoding, which may stand anywhere among them. Sets the device.

    Raises: UserError, as `parse`, and for a device that is not present.
    """
    others, flags = parted(arguments)
    options = parse(kind, others, prog=prog, about=about)
    use_device(options.device)
    return options, flags


def use_device(device: str | None) -> None:
    """Makes JAX compute on a kind of device; None: on the best that is present. To be called before JAX is used.

    Raises: UserError for a device that is not present.
    """
    if device is None:
        return
    jax.config.update("jax_platforms", PLATFORMS[device])
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second if JAX has no support for it
        raise UserError(
            f"--device {device}: there is none that JAX can use: {error or 'it has no support for it'}"
        ) from error


def parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments without the flags of the decoding and their values, and these flags with their values: one each or, of
    a field with several values, all up to the next flag.
    """
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
    """A decoding with the fields replaced that `parted` found.

    Raises: UserError that names all wrong ones.
    """
    if not flags:
        return default
    decoding: Decoding = parse_fields(flags, _with_name(default), prog="", of="the decoding").decoding
    return decoding


def load(run: Path, options: RecognitionOptions) -> Trained:
    """The run, or the checkpoint `RUN/checkpoints/N`, as the options say. Raises: as `load_trained`."""
    folder, updates = _chosen(run, options)
    return load_trained(folder, updates=updates, precision=options.precision, live=options.live)


def maker_of(run: Path, options: RecognitionOptions, flags: Sequence[str] | None, *, head: str = "") -> Maker:
    """The maker of transcripts, without loading the weights.

    Args:
        flags: those of the decoding; None: of alignments.
        head: the head that texts come from; empty: that of the run's validation.

    Raises: UserError where the folder is not a run or has no such checkpoint.
    """
    folder, updates = _chosen(run, options)
    experiment = load_experiment(folder / EXPERIMENT)
    head = "" if flags is None else head or experiment.model.recognising
    decoding = None if flags is None else decoding_of(flags, experiment.model.decoding_of(head))
    return {
        "run": str(folder.resolve()),
        "checkpoint": checkpoint_to_evaluate(folder / CHECKPOINTS, updates),
        "weights": weights_of(experiment, live=options.live),
        **({"head": head} if head else {}),
        "decoding": str(decoding or "alignment"),
        "digest": decoding.digest() if decoding else "alignment",
    }


def uncalibrated(run: Path, options: RecognitionOptions, flags: Sequence[str]) -> str:
    """Says so, and how that is mended: a calibration is of a checkpoint, a kind of weights and a decoding."""
    given = [] if options.checkpoint is None else ["--checkpoint", str(options.checkpoint)]
    command = shlex.join([str(run), *given, *["--live"] * options.live, *flags])
    return (
        "confidences are the model's own, not calibrated; to fit them to what is right in data that it was not trained "
        f"on: python -m asr_jax.evaluate {command} --calibrate --data VALIDATION"
    )


def _chosen(run: Path, options: RecognitionOptions) -> tuple[Path, int | None]:
    """The run's folder and, where one is named, its checkpoint."""
    updates = options.checkpoint
    if run.parent.name == CHECKPOINTS and run.name.isdecimal():
        if updates is not None:
            raise UserError(f"{run} is a checkpoint, and --checkpoint {updates} names another: expected one of them")
        run, updates = run.parent.parent, int(run.name)
    return run, updates
