"""Transcribes audio of any format and length: `python -m asr_jax.transcribe RUN INPUT … [--format srt] [--out DIR]`.

An INPUT is an audio file, a folder (searched recursively), a list of files (`.txt`, one path per line), a manifest or
data folder of any format that training supports, or `-` for standard input: audio if its first bytes are those of an
audio file, otherwise one path per line. Without --out, results are printed in the order of the inputs: path, tab, text.
Rejected recordings are reported with their reasons, and the exit code is 1. With a folder as --out, an interrupted
command can be repeated and continues with the rest.

With --stream, one INPUT is recognised while it arrives: - for raw 16-bit mono samples or a WAV file on standard input,
a named pipe, or an audio file. Utterances end at pauses, and each is a line. A terminal shows the line so far.
"""

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.cli.jobs import JobOptions, digest_of
from asr_jax.cli.recognition_options import (
    ABOUT_DECODING,
    RecognitionOptions,
    checkpoint_digest,
    decoding_in,
    load,
    maker_of,
    parse_recognition,
    print_differing,
    uncalibrated,
)
from asr_jax.cli.results import some
from asr_jax.cli.transcribe_stream import StreamOptions, is_pipe, transcribe_stream
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_no_input, check_writable, remove_empty
from asr_jax.core.jobs import finish, is_finished, path_of
from asr_jax.core.names import counted, one_line
from asr_jax.core.options import given_flags
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeFloat, Share, between, command_options
from asr_jax.data.manifests.audio_inputs import formats, listed, read_stdin, with_durations
from asr_jax.data.manifests.durations import without_durations
from asr_jax.data.manifests.identity import digest_of_recordings, identities
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.transcription import Transcriber
from asr_jax.observe.meter import Meter
from asr_jax.transcripts.files import FORMS, FormName, NamedRecording, form_of
from asr_jax.transcripts.outputs import Output, files_of_job, is_folder, open_output
from asr_jax.transcripts.pseudo_labels import PseudoLabels, rejected_path_of
from asr_jax.transcripts.transcript import Transcript

NOT_OF_STREAMS = (
    "out",
    "force",
    "to_manifest",
    "min_confidence",
    "job",
    "window_seconds",
    "overlap_seconds",
    "state_resets",
    "batch_seconds",
    "batch_size",
    "max_duration",
    "allow_pipes",
)
"""Options that --stream does not use."""


@command_options
class TranscribeOptions(StreamOptions, JobOptions, BatchOptions, RecognitionOptions):
    """Options of `asr_jax.transcribe`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a trained run, or a checkpoint."""
    inputs: Annotated[Positional[tuple[UserPath, ...]], arg(metavar="INPUT …")]
    """Audio files, folders, lists of files, manifests, data folders, or - for standard input."""
    format: FormName | None = None
    """Format of the transcripts. Default: that of the ending of --out (.srt, .vtt, .json, …), otherwise text."""
    json: bool = False
    """Short form of --format json."""
    out: Annotated[Path | None, arg(metavar="DIR|FILE")] = None
    """Output instead of printing: a folder for one file per recording or, if it has an ending, one file."""
    force: bool = False
    """Overwrite existing transcripts."""
    head: Annotated[str, arg(metavar="NAME")] = ""
    """Name of the recognising head. Default: the primary head."""
    window_seconds: Annotated[float, between(0, 86400), arg(metavar="S")] = 0.0
    """Length of the windows for long audio in seconds; 0: the longest utterance of training, or --max-duration if it is
    shorter."""
    overlap_seconds: Annotated[NonNegativeFloat | None, arg(metavar="S")] = None
    """Overlap of windows in seconds. Default: a third of a window."""
    state_resets: Annotated[tuple[float, float], arg(metavar="S S")] = (0.0, 0.0)
    """Length and overlap in seconds of windows with CAIMAN-ASR's state resets, such as 15 3. Longer audio is computed
    in these windows; tokens that begin in the window before are dropped. 0 0: other windows, joined by seams."""
    to_manifest: Annotated[Path | None, arg(metavar="OUT.jsonl")] = None
    """Manifest of the transcripts to write, as pseudo-labels for training."""
    min_confidence: Annotated[Share, arg(metavar="C")] = 0.9
    """Minimum confidence of a pseudo-label, 0 to 1; OUT.rejected.jsonl contains the others."""

    @property
    def form(self) -> FormName:
        return "json" if self.json else self.format or self.form_of_out or "text"

    @property
    def form_of_out(self) -> FormName | None:
        """Format of the ending of a file as --out."""
        return form_of(self.out.name) if self.out and not self.out.is_dir() else None

    @property
    def whole(self) -> Path | None:
        """Output of all jobs. None: transcripts are printed."""
        return self.out or self.to_manifest


def main(arguments: Sequence[str]) -> None:
    options, flags = parse_recognition(
        TranscribeOptions, arguments, prog="python -m asr_jax.transcribe", about=(__doc__ or "") + ABOUT_DECODING
    )
    check(options)
    if options.stream:
        _transcribe_stream(options, flags)
        return
    for flag, out in (("--out", options.out), ("--to-manifest", options.to_manifest)):
        check_no_input(flag, out, options.inputs)
    with _kept(options) as folder:
        entries = listed(options.inputs, read_stdin=read_stdin, folder=str(folder), allow_pipes=options.allow_pipes)
        for line in formats(options.inputs, ReadOptions(texts_may_lack=True, allow_pipes=options.allow_pipes)):
            print(line, file=sys.stderr)
        job, whole = options.own_job, options.whole
        own = entries[job.rows(len(entries))] if job else entries
        digest = inputs = ""
        if job and whole:
            names = [(entry.id, entry.location) for entry in entries]  # which every job lists in the same order
            digest = digest_of(options, flags, names, checkpoint_digest(options.run, options))
            inputs = digest_of_recordings(own, own=folder)
            if not options.force and is_finished(whole, job, digest, inputs):
                return
        rejected, failed = _work(options, flags, own, entries, folder)
        if job and whole:
            files = files_of_job(options.out, job) if options.out else {}
            if manifest := options.to_manifest:
                of_job = job.path(manifest)
                files |= {manifest: of_job, rejected_path_of(manifest): rejected_path_of(of_job)}
            finish(whole, job, digest=digest, inputs=inputs, files=files, recordings=len(own), rejected=rejected)
    if failed and not job:
        raise failed


def _transcribe_stream(options: TranscribeOptions, flags: Sequence[str]) -> None:
    """Transcribes the input while it arrives."""
    trained = load(options.run, options)
    head = options.head or trained.model.recognising
    decoder = trained.decoder(decoding_in(trained.experiment.model, head, flags), head=head)
    [given] = options.inputs
    transcribe_stream(trained, decoder, given, options, as_json=options.form == "json")


def _work(
    options: TranscribeOptions,
    flags: Sequence[str],
    entries: Sequence[Utterance | Rejected],
    everything: Sequence[Utterance | Rejected],
    folder: Path,
) -> tuple[int, RunError | None]:
    """Transcribes recordings that have no transcript yet.

    Args:
        everything: All recordings. Names of files and shapes of batches do not depend on the job.
        folder: Folder of the command's own audio files.

    Returns:
        Number of rejected recordings, and the error that the command ends with if there are any.
    """
    how = {"windows": _windows(options), "max_duration": options.max_duration}
    output = Output()  # which discards transcripts, if only a manifest is requested
    if options.out or not options.to_manifest:
        output = open_output(
            options.form,
            options.out,
            everything,
            force=options.force,
            maker=lambda: {**maker_of(options.run, options, flags, head=options.head), **how},
            made_of=lambda: identities(entries, own=folder),
            job=options.own_job,
        )
    todo = [entry for entry in entries if not output.has(entry.id)]
    if len(todo) < len(entries):
        done = counted(len(entries) - len(todo), "recording")
        print(f"already in {options.out}: {done} of {len(entries)} (--force overwrites)", file=sys.stderr)
    if not todo:
        return 0, None
    with output, ExitStack() as stack:
        labels = None
        if options.to_manifest:
            path = path_of(options.to_manifest, options.own_job)
            labels = stack.enter_context(PseudoLabels(path, min_confidence=options.min_confidence))
        of_manifests = {entry.id for entry in todo if isinstance(entry, Utterance) and entry.duration_s > 0}
        measured = with_durations(everything if options.own_job else todo)
        shapes_of = [entry for entry in measured if isinstance(entry, Utterance)]
        names = {entry.id for entry in todo}
        measured = [entry for entry in measured if entry.id in names]
        unreadable = [entry for entry in measured if isinstance(entry, Rejected)]
        _say_rejected(unreadable)
        rejected = _transcribe(options, flags, measured, output, labels, folder, of_manifests, shapes_of)
        places: list[Output | PseudoLabels] = [output, labels] if labels else [output]
        for entry, place in itertools.product(rejected, places):
            place.reject(entry.id, entry.location, entry.reason)
    if labels:
        print(labels.summary(), file=sys.stderr)
    failed = RunError(f"{len(rejected)} of {counted(len(todo), 'recording')} could not be transcribed")
    if not options.own_job and len(unreadable) == len(entries):
        raise UserError("no input is readable audio; the reasons are above")
    if not options.own_job and len(rejected) == len(todo):
        raise failed
    return len(rejected), failed if rejected else None


def _say_rejected(entries: Sequence[Rejected]) -> None:
    for entry in entries:
        print(one_line(f"rejected {entry.location}: {entry.reason}"), file=sys.stderr)


def check(options: TranscribeOptions) -> None:
    """Checks the options.

    Raises:
        UserError: If options cannot be combined, or the manifest exists.
    """
    if options.stream:
        if others := given_flags(options, *NOT_OF_STREAMS):
            raise UserError(f"--stream with {others[0]}, which streams do not have: leave one of them out")
        if len(options.inputs) != 1 or options.form not in ("text", "json"):
            raise UserError(
                f"--stream with {counted(len(options.inputs), 'input')} and format {options.form}: expected one audio "
                "file, or - for standard input, and format text or json"
            )
        if options.rate_hz and not is_pipe(options.inputs[0]):
            raise UserError(
                f"--rate-hz {options.rate_hz} with {options.inputs[0]}, which has its sample rate in its header: leave "
                "--rate-hz out; it belongs to raw samples from a pipe"
            )
    elif others := given_flags(options, *(field.name for field in fields(StreamOptions))):
        raise UserError(f"{others[0]} without --stream: add --stream, or leave {others[0]} out")
    if options.json and options.format not in (None, "json"):
        raise UserError(f"--json and --format {options.format} contradict each other: expected one of them")
    if options.form_of_out not in (None, "text", options.form):
        raise UserError(
            f"--out {options.out} has the ending of another format than {options.form}: expected a name that ends in "
            f"{FORMS[options.form].ending}, or --format {options.form_of_out}"
        )
    if options.to_manifest and options.to_manifest.suffix != ".jsonl":
        raise UserError(f"--to-manifest {options.to_manifest}: expected a name that ends in .jsonl")
    job, manifest = options.own_job, options.to_manifest
    if manifest and not options.force and path_of(manifest, job).exists() and not _is_finished(options):
        raise UserError(f"{path_of(manifest, job)} already exists: choose another --to-manifest, or use --force")
    if options.to_manifest and options.out and is_folder(options.out):
        raise UserError("--to-manifest with a folder as --out: expected a file, such as --format json --out all.jsonl")


def _is_finished(options: TranscribeOptions) -> bool:
    """Whether there is a receipt of this job, which is checked when the recordings are known."""
    job, whole = options.own_job, options.whole
    return bool(job and whole and job.receipt(whole).exists())


@contextmanager
def _kept(options: TranscribeOptions) -> Iterator[Path]:
    """Yields a folder for audio that is embedded in tables or read from standard input.

    Without --to-manifest, the folder is temporary. With it, the folder is kept beside the manifest, which refers to its
    files, and a new folder is deleted if the command fails.
    """
    if not options.to_manifest:
        with tempfile.TemporaryDirectory(prefix="asr_jax-") as temporary:
            yield Path(temporary)
        return
    manifest = path_of(options.to_manifest, options.own_job)
    folder = manifest.absolute().with_suffix(".audio")
    was_there = folder.exists()
    made = check_writable(manifest)
    made = check_writable(folder, is_folder=True) + made
    try:
        yield folder
    except BaseException:
        if not was_there:
            shutil.rmtree(folder)
        raise
    finally:
        remove_empty(made)


def _windows(options: TranscribeOptions) -> str:
    """Returns the windows of long audio that were requested, in words."""
    if any(options.state_resets):
        return "of state resets, {:g} s with an overlap of {:g} s".format(*options.state_resets)
    overlap = "" if options.overlap_seconds is None else f" with an overlap of {options.overlap_seconds:g} s"
    return (f"of {options.window_seconds:g} s" if options.window_seconds else "of the default length") + overlap


def _transcribe(
    options: TranscribeOptions,
    flags: Sequence[str],
    entries: Sequence[Utterance | Rejected],
    output: Output,
    labels: PseudoLabels | None,
    folder: Path,
    of_manifests: Set[str],
    shapes_of: Sequence[Utterance],
) -> list[Rejected]:
    """Transcribes the utterances; returns the rejected recordings, in order.

    `of_manifests` contains the ids of the utterances whose durations a manifest states. `shapes_of` contains all
    recordings, including the recordings of other jobs.
    """
    remarks = list[Rejected | None]()
    rejected = [entry for entry in entries if isinstance(entry, Rejected)]
    utterances = [entry for entry in entries if isinstance(entry, Utterance)]
    if not utterances:
        return rejected
    trained = load(options.run, options, options).with_resets(options.state_resets)
    head = options.head or trained.model.recognising
    decoder = trained.decoder(decoding_in(trained.experiment.model, head, flags), head=head)
    if labels and options.min_confidence and not decoder.calibration:
        print(uncalibrated(options.run, options, flags, head=options.head), file=sys.stderr)
    total_s = sum(utterance.duration_s for utterance in utterances if utterance.duration_s > 0)
    prints = not options.out and not options.to_manifest and sys.stdout.isatty()
    empty: list[str] = []
    with Meter(total_s, has_bar=not prints) as meter:
        transcriber = Transcriber(
            trained, decoder, window_s=options.window_seconds, overlap_s=options.overlap_seconds, tell=meter.add
        )
        try:
            for each in transcriber(utterances, part_of=shapes_of):
                reason = each.reason
                if each.transcript is not None:
                    transcript = named(each.utterance, each.transcript, folder)
                    reason = output.write(replace(transcript, head=head, decoding=str(decoder.search.decoding)))
                if each.transcript is None or reason:
                    rejected.append(Rejected(each.utterance.id, each.utterance.location, reason, "result"))
                    continue
                if each.differing:
                    is_known = each.utterance.id in of_manifests
                    remarks.append(each.differing if is_known else without_durations(each.differing))
                if not each.transcript.text:
                    empty.append(transcript.path)
                if labels:
                    labels.add(each.utterance, each.transcript, most_s=transcriber.longest_s)
        except KeyboardInterrupt:
            if output.goes_on:
                print(f"{options.out} is incomplete: the same command continues with the rest", file=sys.stderr)
            raise
    if empty:
        which = empty[0] if len(empty) == 1 else f"{len(empty)} recordings: {some(empty)}"
        print(f"no word was recognised in {which}", file=sys.stderr)
    print_differing(list(filter(None, remarks)))
    _say_rejected(rejected[len(entries) - len(utterances) :])
    numbers = f"{len(entries) - len(rejected):,} transcribed, {len(rejected):,} rejected"
    print(f"{counted(len(entries), 'recording')}: {numbers}; {meter}, {meter.took_s:.1f} s", file=sys.stderr)
    return rejected


def named(utterance: Utterance, transcript: Transcript, folder: Path) -> NamedRecording:
    """Returns a transcript with its name.

    Args:
        folder: Folder of the command's own audio files; the id replaces their path, which is not known to the user.
    """
    path = utterance.id if Path(utterance.location).is_relative_to(folder) else None
    return NamedRecording.of(utterance, transcript, path=path)
