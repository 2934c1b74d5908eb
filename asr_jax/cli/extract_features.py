"""Extracts features of audio to Parquet: `python -m asr_jax.extract_features --input IN … --output OUT`.

The features equal those of training, since the same compiled front-end computes them; `--data.train OUT` trains on
them. `--preset NAME` and `--architecture NAME` select a front-end without a config or a run. `RUN --layer 6` writes the
output of a layer of a trained encoder instead, and `RUN --codes` the codes of the quantiser of a pre-trained run, one
integer for each group and frame. An interrupted command can be repeated and continues: finished parts are stored beside
OUT until the file is complete.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.presets import of_architecture, preset
from asr_jax.cli.command_line import load_config
from asr_jax.cli.jobs import JobOptions
from asr_jax.cli.recognition_options import RecognitionOptions, load
from asr_jax.config import load_experiment
from asr_jax.core.devices import chosen_flags, say_devices
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import OF_ALL_FILES, check_no_input
from asr_jax.core.jobs import Job, finish, path_of
from asr_jax.core.meshes import data_mesh
from asr_jax.core.names import counted
from asr_jax.core.options import given_flags, parse
from asr_jax.core.paths import UserPath
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, command_options
from asr_jax.data.batching.filters import LONGEST_S
from asr_jax.data.loading.extraction import Extracted, Extractor, extract
from asr_jax.data.manifests.inputs import resolve
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.extractors import of_codes, of_layer, with_windows
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.observe.events import EventLog, events_beside
from asr_jax.text.normalise import CHOICES
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer
from asr_jax.watching.background import NO_SCREEN, has_screen, run_with_dashboard

OF_JOB = re.compile(r"-\d{5,}-of-\d{5,}\.parquet$")
"""Ending of the file of a job."""
LONGEST_AT_ONCE_S = 600.0
"""Longest audio of which a front-end computes features at once. It takes less memory than a model."""


@command_options
class ExtractOptions(JobOptions, BatchOptions):
    """Command-line options of `asr_jax.extract_features`."""

    trained: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """Folder of a run, or a checkpoint, as --run; must be the first argument."""
    input: Annotated[UseAppendAction[tuple[tuple[UserPath, ...], ...]], arg(metavar="IN …")]
    """Manifests, folders or patterns of any supported format."""
    output: Path
    """A .parquet file; or, if an input is a folder, a folder for a file NNNN-NAME.parquet per input file."""
    config: Annotated[UserPath, arg(metavar="FILE")] = ""
    """Config whose front-end is used. Default: Kaldi's filter bank with 80 bins, as --preset icefall."""
    preset: Annotated[str, arg(metavar="NAME")] = ""
    """Name of a front-end in asr_jax.audio.presets, such as nemo or whisper."""
    architecture: Annotated[str, arg(metavar="NAME")] = ""
    """Architecture whose front-end is used: zipformer, conformer, fastconformer, squeezeformer, quartznet, wav2vec2 or
    w2v_bert."""
    run: Annotated[Path | None, arg(metavar="RUN")] = None
    """Folder of a run, or a checkpoint, whose front-end or weights are used."""
    layer: str = ""
    """Layer of the encoder of RUN: its number from 0, the name of another tap, such as features, or output."""
    codes: bool = False
    """Write the codes of the quantiser of RUN."""
    tokenizer: Annotated[UserPath, arg(metavar="PATH")] = ""
    """Tokenizer for token ids to write with the features, as data.tokenizer.path."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = "lower.v1"
    """Normaliser of the texts before they are tokenised."""
    max_duration: Annotated[PositiveFloat | None, arg(metavar="S")] = None
    """Longest audio in seconds that is computed at once; longer audio is computed in windows. Default: 600, and four
    times the longest utterance of training for --layer and --codes."""
    reject_above: Annotated[PositiveFloat | None, arg(metavar="S", aliases=["--max-duration-s"])] = None
    """Duration in seconds above which utterances are rejected. Default: none is."""
    max_samples: NonNegativeInt = 0
    """Maximum number of utterances of each input, counted from its beginning; 0: all."""
    jobs: NonNegativeInt = 0
    """Number of processes that read audio; 0: threads."""
    force: bool = False
    """Overwrite an existing output, and repeat a finished job. Parts that an interrupted command left are kept."""
    tui: bool = False
    """Extract in a process of its own and show a dashboard, as asr_jax.watch; q closes it, and the work goes on."""
    allow_pipes: bool = False
    """Run commands in the place of files, as `ffmpeg -i a.m4a -f wav - |` in Kaldi's wav.scp."""

    @property
    def source(self) -> Path | None:
        """Folder of the run: `--run`, or the first argument."""
        return self.run or self.trained


def main(arguments: Sequence[str]) -> None:
    options = parse(ExtractOptions, arguments, prog="python -m asr_jax.extract_features", about=__doc__)
    front_ends = [*["RUN"] * bool(options.trained), *given_flags(options, "config", "run", "preset", "architecture")]
    for given in (front_ends, given_flags(options, "layer", "codes")):
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} exclude each other: expected one of them")
    if (options.layer or options.codes) and not options.source:
        raise UserError("--layer and --codes need a trained run: expected asr_jax.extract_features RUN --layer …")

    inputs = [path for paths in options.input for path in paths]
    check_no_input("--output", options.output, inputs)
    events = events_beside(path_of(options.output, options.own_job))
    if options.tui and has_screen():
        others = [argument for argument in arguments if argument != "--tui"]
        command = [sys.executable, "-m", "asr_jax.extract_features", *chosen_flags(), *others]
        sys.exit(run_with_dashboard(command, events, name=options.output.name))
    if options.tui:
        print(NO_SCREEN, file=sys.stderr)
    extractor = _extractor(options)
    groups = _groups(inputs, options.output)
    log: EventLog | None = None

    def write(name: str, **data: Any) -> None:
        nonlocal log
        log = log or EventLog(events)
        log.write(name, **data)

    try:
        rejected = _extract_all(extractor, groups, options.own_job, write)
        write("extraction_complete", files=len(groups))
    except BaseException as error:
        if log:  # otherwise nothing is written
            with suppress(OSError):  # if the disk is full, the first error is the one to report
                write("run_failed", reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        if log:
            log.close()
    if rejected and not options.own_job:
        raise RunError(
            f"rejected: {counted(rejected, 'utterance')}; see *.rejected.jsonl beside the output for the reasons"
        )


def _extract_all(
    extractor: Callable[..., Extracted],
    groups: Sequence[tuple[Path, Sequence[str]]],
    job: Job | None,
    write: Callable[..., None],
) -> int:
    """Writes all files, and returns the number of rejected utterances.

    Raises:
        RunError: If files could not be written; the others are.
    """
    rejected, failed = 0, list[Path]()
    for out, paths in groups:
        try:
            rejected += _extract(functools.partial(extractor, write=write), out, paths, job)
        except KeyboardInterrupt:
            print("finished parts are kept: the same command continues with the rest", file=sys.stderr)
            raise
        except (UserError, OSError) as error:
            if len(groups) == 1 or getattr(error, "errno", None) in OF_ALL_FILES:
                raise
            print(f"error: {error}", file=sys.stderr)
            failed.append(out)
    if failed:
        raise RunError(f"{counted(len(failed), 'output')} of {len(groups)} could not be written; the reasons are above")
    return rejected


def _extract(extractor: Callable[..., Extracted], out: Path, paths: Sequence[str], job: Job | None) -> int:
    """Writes the features of some inputs, or of a job of them; returns the number of rejected utterances."""
    if job is None:
        return extractor(out, paths).rejected
    own = job.path(out)
    digest, recordings, rejected = extractor(own, paths, job=job)
    files = {out: own, out.with_suffix(".rejected.jsonl"): own.with_suffix(".rejected.jsonl")}
    finish(out, job, digest=digest, files=files, recordings=recordings, rejected=rejected)
    return rejected


def _groups(inputs: Sequence[str], output: Path) -> list[tuple[Path, Sequence[str]]]:
    """Files to write, each with its inputs."""
    if not any(os.path.isdir(path) for path in inputs):
        if output.suffix != ".parquet":
            raise UserError(
                f"--output {output}: expected a name that ends in .parquet; only folders as inputs give a folder"
            )
        return [(output, inputs)]
    groups: list[tuple[Path, Sequence[str]]] = [
        (output / f"{number:04}-{Path(path).name.partition('.')[0]}.parquet", [path])
        for number, (_, path, _) in enumerate(resolve(inputs))
    ]
    own = {OF_JOB.sub(".parquet", path.name) for path in output.glob("*.parquet")}
    others = sorted(own - {out.name for out, _ in groups})
    if others:
        raise UserError(
            f"--output {output} contains {', '.join(others[:5])}{' …' * (len(others) > 5)}, which these inputs do not "
            "produce and which training on the folder would read too: delete them, or choose another --output"
        )
    return groups


def _extractor(options: ExtractOptions) -> Callable[..., Extracted]:
    """Function that writes the features of some inputs to one file, as `extract`."""
    tokenizer = None
    if options.tokenizer:
        tokenizer = given_tokenizer(TokenizerSettings(path=options.tokenizer, normaliser=options.normaliser))

    return functools.partial(
        extract,
        extractor=_frames(options),
        tokenizer=tokenizer,
        reject_above_s=options.reject_above or LONGEST_S,
        max_samples=options.max_samples,
        workers=options.jobs,
        allow_pipes=options.allow_pipes,
        force=options.force,
    )


def _frames(options: ExtractOptions) -> Extractor:
    """Extractor of the frames: the front-end, a layer of the encoder, or the quantiser."""
    if options.source and (options.layer or options.codes):
        trained = load(options.source, RecognitionOptions(), options)  # a path RUN/checkpoints/N selects a checkpoint
        extractor = of_codes(trained) if options.codes else of_layer(trained, options.layer)
        limits = options.limits(data_mesh(1), extractor.front_end)
        return replace(extractor, limits=replace(limits, longest_s=extractor.limits.longest_s))
    say_devices()
    front_end = _front_end(options)
    limits = options.limits(data_mesh(1), front_end)
    limits = replace(limits, longest_s=options.max_duration or LONGEST_AT_ONCE_S)
    return with_windows(Extractor.of_front_end(front_end), front_end.output_length, limits, limits.longest_s)


def _front_end(options: ExtractOptions) -> FrontEnd:
    """Front-end of a preset, an architecture, a config or a run."""
    if options.preset or options.architecture:
        return preset(options.preset) if options.preset else of_architecture(options.architecture)
    if options.source:
        return load_experiment(run_and_checkpoint(options.source)[0] / EXPERIMENT).model.front_end
    return load_config(options.config).model.front_end if options.config else KaldiFbank()
