"""Options of commands that recognise or align speech: weights, precision and decoding."""

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from asr_jax.checkpoints.integrity import seal_digest
from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.cli.context_options import ContextOptions
from asr_jax.config import load_experiment
from asr_jax.core.devices import say_devices
from asr_jax.core.errors import UserError
from asr_jax.core.flags import assembled, flags_of, parse_flags, read
from asr_jax.core.help import asks_for_help, show_help
from asr_jax.core.names import counted
from asr_jax.core.precision import Precision
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.core.settings import command_options
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.calibration import read_calibration
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.trained import Trained, load_trained, weights_of
from asr_jax.models.base import Model
from asr_jax.pretrained.published import is_published
from asr_jax.search.base import Decoding
from asr_jax.search.ctc import CTCDecoding
from asr_jax.transcripts.outputs import Maker

PREFIX = "--decoding."
TRAIN = "python -m asr_jax.train --config FILE"
ABOUT_DECODING = """

Decoding: the decoding of the run's validation. --decoding.FIELD VALUE changes a field, such as

  --decoding.kind beam --decoding.beam-width 20
  --decoding.fusion.kenlm lm.arpa --decoding.fusion.lm-weight 0.5
  --decoding.reranking.kenlm lm.arpa
  --decoding.hot-words anna:8 otto (takes all values up to the next flag; WORD:WEIGHT, or the default weight)
  --decoding.lexicon words.txt

python -m asr_jax.train --config FILE --help-all lists all fields."""


@command_options
class RecognitionOptions(ContextOptions):
    """Weights, context and precision of recognition."""

    checkpoint: Annotated[int | None, arg(metavar="UPDATES")] = None
    """Number of updates of the checkpoint. Default: the checkpoint with the best validation."""
    live: bool = False
    """Use the live parameters instead of the averaged ones."""
    precision: Precision | None = None
    """Precision of the computation. Default: the precision of training."""
    allow_pipes: bool = False
    """Run commands in the place of files, as `ffmpeg -i a.m4a -f wav - |` in Kaldi's wav.scp."""


def parse_recognition[Options: RecognitionOptions](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None
) -> tuple[Options, list[str]]:
    """Parses options and flags of the decoding, in any order.

    Returns:
        The options, and the flags of the decoding with their values, for `decoding_of`.

    Raises:
        UserError: If flags are unknown or missing, or options have values of another type.
    """
    flags = flags_of(kind)
    of_decodings = [flag for each in _decodings(arguments) for flag in flags_of(each, place=(1,), prefix=PREFIX)]
    if asks_for_help(arguments):
        show_help(arguments, flags, prog=prog, about=about)
    given, others = read(arguments, [*flags, *of_decodings])
    wrong = [group for group in others if not group[0].startswith(PREFIX)]  # `decoding_of` reports the others
    [options] = assembled([kind], [*flags, *of_decodings], given, wrong, prog=prog)
    groups = [[each.written, *each.values] for each in given if each.flag in of_decodings]
    return options, [word for group in (*groups, *others) for word in group if group not in wrong]


def _decodings(arguments: Sequence[str]) -> Iterator[Decoding]:
    """Yields the decodings of the runs among the arguments, and that of CTC."""
    yield CTCDecoding()
    for argument in arguments:
        if argument.startswith("--") or is_published(Path(argument)):  # a published model has the decoding of CTC
            continue
        path = run_and_checkpoint(Path(argument))[0] / EXPERIMENT
        if path.is_file():
            with contextlib.suppress(UserError):  # `load` reports it
                heads = load_experiment(path).model.heads.values()
                yield from (head.search_settings for head in heads if head.search_settings)


def decoding_of(flags: Sequence[str], default: Decoding) -> Decoding:
    """Returns a decoding in which the fields of the flags are replaced.

    Raises:
        UserError: If flags are invalid; the message names all of them.
    """
    [decoding] = parse_flags([default], flags_of(default, prefix=PREFIX), flags, prog=TRAIN)
    return decoding


def decoding_in(model: Model, head: str, flags: Sequence[str]) -> Decoding:
    """Returns the decoding of a head with the fields of the flags replaced.

    Raises:
        UserError: If the head does not exist or flags are invalid. The message names a head that takes them.
    """
    default = model.decoding_of(head)
    try:
        return decoding_of(flags, default)
    except UserError as error:
        takes = [other for other, each in model.heads.items() if other != head and _takes(each.search_settings, flags)]
        if not takes:
            raise
        raise UserError(f"{error}\nThe search of the head {takes[0]} has these settings: --head {takes[0]}") from None


def _takes(decoding: Decoding | None, flags: Sequence[str]) -> bool:
    """Whether the flags are valid for a decoding."""
    with contextlib.suppress(UserError):
        return decoding is not None and bool(decoding_of(flags, decoding))
    return False


def print_differing(entries: Sequence[Rejected]) -> None:
    """Prints the utterances that are used with remarks on their audio, with their number."""
    for each in entries:
        print(f"warning: {each.line}", file=sys.stderr)
    if entries:
        print(f"warning: {counted(len(entries), 'utterance')} used with remarks on the audio", file=sys.stderr)


def load(run: Path, options: RecognitionOptions, batches: BatchOptions | None = None) -> Trained:
    """Loads a run, or a checkpoint given as `RUN/checkpoints/N`, and prints the devices on standard error.

    Args:
        batches: Sizes of batches. None: those that fit the device.

    Raises:
        UserError: If `load_trained` rejects the run or the sizes, or --checkpoint contradicts the path.
    """
    folder, updates = run_and_checkpoint(run, options.checkpoint)
    say_devices()
    return load_trained(
        folder,
        updates=updates,
        precision=options.precision,
        live=options.live,
        batches=batches,
        context=options.context,
    )


def checkpoint_digest(run: Path, options: RecognitionOptions) -> str:
    """Number and digest of the checkpoint that `load` reads, for jobs that divide the work of a command.

    Raises:
        UserError: If the run has no such checkpoint, or it is damaged.
    """
    folder, updates = run_and_checkpoint(run, options.checkpoint)
    number = checkpoint_to_evaluate(folder / CHECKPOINTS, updates)
    return f"{number} {seal_digest(folder / CHECKPOINTS / str(number))}"


def maker_of(run: Path, options: RecognitionOptions, flags: Sequence[str] | None, *, head: str = "") -> Maker:
    """Describes what makes transcripts or alignments, without loading the weights.

    Args:
        flags: Flags of the decoding; None for alignments.
        head: Name of the recognising head; empty: the primary head.

    Raises:
        UserError: If the folder is not a run, or the checkpoint does not exist.
    """
    folder, updates = run_and_checkpoint(run, options.checkpoint)
    experiment = load_experiment(folder / EXPERIMENT)
    number, weights = checkpoint_to_evaluate(folder / CHECKPOINTS, updates), weights_of(experiment, live=options.live)
    context = options.context
    primary, decoding, calibration = experiment.model.recognising, None, None
    if flags is not None:
        head = head or primary
        decoding = decoding_in(experiment.model, head, flags)
        calibration = read_calibration(folder, number, weights, decoding, head=head if head != primary else "")
    return {
        "run": str(folder.resolve()),
        "checkpoint": f"{number} {seal_digest(folder / CHECKPOINTS / str(number))}",
        "weights": weights,
        "precision": options.precision or experiment.training.precision,
        **({} if context is None else {"context": [context.chunk_frames, context.left_frames]}),
        **({"head": head} if decoding else {}),
        "decoding": str(decoding or "alignment"),
        "digest": decoding.digest() if decoding else "alignment",
        "calibration": calibration and asdict(calibration),
    }


def uncalibrated(run: Path, options: RecognitionOptions, flags: Sequence[str], *, head: str = "") -> str:
    """Message that confidences are not calibrated, with the command that calibrates them.

    A calibration belongs to a checkpoint, a kind of weights and a decoding.
    """
    given = [] if options.checkpoint is None else ["--checkpoint", str(options.checkpoint)]
    command = shlex.join([str(run), *given, *["--live"] * options.live, *(["--head", head] if head else []), *flags])
    return (
        "confidences are not calibrated; to calibrate them on data that the model was not trained on: "
        f"python -m asr_jax.evaluate {command} --calibrate --data VALIDATION"
    )
