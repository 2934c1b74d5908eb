"""Start and end of each word: `python -m asr_jax.align RUN --data MANIFEST … | RUN AUDIO --text FILE`.

Prints a line of JSON for each recording, or CTM, TextGrids or subtitles with --format. With --segment, cuts long audio
and its whole text at pauses into pieces and writes a manifest of the pieces with their scores. Uncertain pieces are
written to another file, with their reasons.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from asr_jax.alignment.cutting import Cutting
from asr_jax.audio.io import probe
from asr_jax.cli.jobs import JobOptions, digest_of
from asr_jax.cli.recognition_options import RecognitionOptions, checkpoint_digest, load, maker_of, print_differing
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_no_input, check_writable, write_whole
from asr_jax.core.jobs import Job, finish, is_finished, path_of
from asr_jax.core.names import counted, one_line
from asr_jax.core.options import given_flags, parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import PositiveFloat, between, command_options
from asr_jax.core.text_files import TextError, json_line, read_text
from asr_jax.data.batching.evaluation import NoUtterances, part_of
from asr_jax.data.batching.filters import Rejections
from asr_jax.data.batching.round_trip import fitting_normaliser
from asr_jax.data.manifests.identity import digest_of_recordings, identities
from asr_jax.data.manifests.inputs import described
from asr_jax.data.manifests.manifest import manifest_fields
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference import aligning
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.segmenting import Segmenter, UtterancePiece
from asr_jax.inference.trained import Trained
from asr_jax.text.normalise import CHOICES, check_normaliser
from asr_jax.text.segmentation import on_one_line
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.files import FormName, NamedRecording
from asr_jax.transcripts.outputs import Output, files_of_job, open_output
from asr_jax.transcripts.pseudo_labels import rejected_path_of


@command_options
class AlignOptions(JobOptions, BatchOptions, RecognitionOptions):
    """Options of `asr_jax.align`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a trained run with a CTC head, or a checkpoint."""
    audio: Annotated[Positional[UserPath | None], arg(metavar="AUDIO")] = None
    """One audio file, with --text."""
    text: Annotated[Path | None, arg(metavar="FILE")] = None
    """File with the text of AUDIO."""
    data: Annotated[tuple[UserPath, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests of recordings with texts, instead of AUDIO and --text."""
    out: Path | None = None
    """Output file, or folder for one file per recording. Default: standard output."""
    force: bool = False
    """Overwrite existing alignments."""
    format: FormName | None = None
    """Format of the alignments. Default: json."""
    tokens: bool = False
    """Also write the times of tokens, in the formats json and textgrid."""
    segment: bool = False
    """Cut long audio into pieces and write their manifest to --out."""
    rejected: Annotated[Path | None, arg(metavar="FILE", aliases=["--rejects"])] = None
    """File for the uncertain pieces, with reasons. Default: OUT.rejected.jsonl."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = ""
    """Normaliser of the texts, before that of the run's tokenizer: english.v1 writes numbers as words and removes
    punctuation. Pieces of --segment keep the original text. Default: only that of the tokenizer."""
    max_seconds: PositiveFloat | None = None
    """Maximum length of a piece of --segment in seconds. Default: 20."""
    min_score: Annotated[float, between(most=0)] | None = None
    """Minimum score of a piece of --segment, a mean log-probability, at most 0. Default: -0.3."""

    @property
    def manifests(self) -> tuple[Path, Path]:
        """Files for the certain and for the uncertain pieces of --segment."""
        assert self.out
        return self.out, self.rejected or rejected_path_of(self.out)


def main(arguments: Sequence[str]) -> None:
    options = parse(AlignOptions, arguments, prog="python -m asr_jax.align", about=__doc__)
    if bool(options.data) == bool(options.audio) or bool(options.audio) != bool(options.text):
        raise UserError("expected recordings with their texts: either --data MANIFEST …, or AUDIO --text FILE")
    if options.own_job and not (options.data and options.out):
        raise UserError(f"--job {options.job}: expected --data MANIFEST … and --out, whose jobs are joined later")
    check_normaliser(options.normaliser)
    for flag, path in (("--out", options.out), ("--rejected", options.rejected)):
        check_no_input(flag, path, filter(None, (*options.data, options.audio, options.text)))
    check_segment(options)
    utterances, job, out = read(options), options.own_job, options.out
    digest = inputs = ""
    if job and out:
        digest = digest_of(options, utterances.digest, checkpoint_digest(options.run, options))
        inputs = digest_of_recordings(own_of(utterances, job))
        if not options.force and is_finished(out, job, digest, inputs):
            return
    rejected, num = (segment if options.segment else align)(options, utterances)
    if job and out:
        files = {path: job.path(path) for path in options.manifests} if options.segment else files_of_job(out, job)
        recordings = len(own_of(utterances, job))
        finish(out, job, digest=digest, inputs=inputs, files=files, recordings=recordings, rejected=rejected)
    elif rejected:
        done = "segmented" if options.segment else "aligned"
        raise RunError(f"{rejected} of {counted(num, 'utterance')} could not be {done}; the reasons are above")


def own_of(utterances: Utterances, job: Job | None) -> Utterances:
    """Utterances of a job. Entries of manifests that are no utterances are rejected by the first job."""
    if job is None:
        return utterances
    own = utterances.select(job.rows(len(utterances)))
    return own if job.number == 0 else replace(own, rejected=())


def check_segment(options: AlignOptions) -> None:
    """Checks --segment, and the options that need or exclude it.

    Raises:
        UserError: If an option has no effect, or an output file of --segment is missing or exists.
    """
    if not options.segment:
        if given := ", ".join(given_flags(options, "rejected", "max_seconds", "min_score")):
            raise UserError(f"{given} without --segment has no effect: add --segment, or remove {given}")
        return
    if given := ", ".join(given_flags(options, "format", "tokens")):
        raise UserError(f"{given} with --segment: the output is a manifest of pieces; remove {given}, or --segment")
    if not options.out:
        raise UserError("--segment needs --out: expected the path of the manifest of pieces to write")
    out, rejected = options.manifests
    if rejected.absolute() == out.absolute():
        raise UserError(f"--out and --rejected are both {out}: expected two files")
    for name, path in (("out", out), ("rejected", rejected)):
        if path.exists() and not options.force and not options.own_job:
            raise UserError(f"{path} already exists: choose another --{name}, or overwrite it with --force")


def read(options: AlignOptions) -> Utterances:
    """Reads the utterances of --data, or of AUDIO and --text."""
    if options.data:
        how = ReadOptions(allow_pipes=options.allow_pipes)
        utterances = read_utterances(options.data, role="validation", options=how)
        for line in described(options.data, "validation", how):
            print(line, file=sys.stderr)
        return utterances
    assert options.text is not None
    assert options.audio is not None
    try:
        text = on_one_line(read_text(options.text))
    except (OSError, TextError) as error:
        raise UserError(f"--text {options.text} cannot be read: {error}; expected text in UTF-8") from error
    utterance = Utterance(Path(options.audio).stem, options.audio, text, probe(options.audio).duration_s)
    return Utterances.of([utterance])


def align(options: AlignOptions, utterances: Utterances) -> tuple[int, int]:
    """Aligns utterances, or a job of them; returns the number of rejected ones, and of all."""
    job = options.own_job
    everything, utterances = utterances, own_of(utterances, job)
    how = {"tokens": options.tokens, "max_duration": options.max_duration, "normaliser": options.normaliser}
    output = open_output(
        options.format or "json",
        options.out,
        list(everything),
        force=options.force,
        maker=lambda: {**maker_of(options.run, options, None), **how},
        made_of=lambda: identities(utterances, with_texts=True),
        job=job,
    )
    todo = [place for place, utterance in enumerate(utterances) if not output.has(utterance.id)]
    if len(todo) < len(utterances):
        done = counted(len(utterances) - len(todo), "utterance")
        print(f"already in {options.out}: {done} of {len(utterances)} (--force overwrites)", file=sys.stderr)
    if len(utterances) and not todo:
        return 0, 0
    with output:
        utterances, trained = utterances.select(np.array(todo, np.int32)), loaded(options)
        try:
            data = aligning.plan(trained, everything if job else utterances)
        except NoUtterances as error:
            leave_out(of_rejections(error.rejections), output)
            advise(utterances, trained.tokenizer)
            raise
        names = {each.id for each in (*utterances, *utterances.rejected)}
        rejected = [each for each in of_rejections(data.rejections) if not job or each[0] in names]
        if job:
            data = part_of(data, data.index.rows_of(utterances.rows))
        found = {entry.utterance.id: entry for entry in aligning.aligned_utterances(trained, data)}
        for utterance in filter(lambda utterance: utterance.id in found, utterances):
            aligned = found[utterance.id]
            reason, tokens = aligned.reason, aligned.tokens if options.tokens else ()
            if aligned.transcript is not None:
                reason = output.write(NamedRecording.of(aligned.utterance, aligned.transcript, tokens=tokens))
            if reason:
                rejected.append((utterance.id, utterance.location, reason))
        leave_out(rejected, output)
        if rejected:
            advise(utterances, trained.tokenizer)
        print_differing([entry.differing for entry in found.values() if entry.differing])
    return len(rejected), len(utterances) + len(utterances.rejected)


def loaded(options: AlignOptions) -> Trained:
    """Loads the weights, with a tokenizer that applies --normaliser first."""
    trained = load(options.run, options, options)
    if not options.normaliser:
        return trained
    own = trained.tokenizer.normaliser
    return replace(trained, tokenizer=replace(trained.tokenizer, normaliser=f"{options.normaliser}+{own}"))


def advise(utterances: Utterances, tokenizer: Tokenizer) -> None:
    """Prints the normaliser with which the texts that cannot be aligned have labels, if there is one."""
    lacking = [text for text in utterances.texts() if aligning.unlabelled(text, tokenizer)[0]]
    if lacking and (name := fitting_normaliser(lacking, tokenizer, keeps="none")):
        print(f"{counted(len(lacking), 'text')} without labels: --normaliser {name} gives them labels", file=sys.stderr)


def leave_out(entries: Iterable[tuple[str, str, str]], output: Output | None) -> None:
    """Prints the rejected utterances and adds them to the output."""
    for name, location, reason in entries:
        print(one_line(f"rejected {name}: {location}: {reason}"), file=sys.stderr)
        if output:
            output.reject(name, location, reason)


def segment(options: AlignOptions, utterances: Utterances) -> tuple[int, int]:
    """Cuts long audio, or that of a job, into pieces and writes the manifests of certain and of uncertain pieces.

    Returns the number of rejected utterances, and of all.
    """
    outs = [path_of(path, options.own_job) for path in options.manifests]
    for out in outs:
        check_writable(out)
    utterances = own_of(utterances, options.own_job)
    trained = loaded(options)
    min_score = Cutting.min_score if options.min_score is None else options.min_score
    cutting = Cutting(max_s=options.max_seconds or Cutting.max_s, min_score=min_score)
    done = list(Segmenter(trained, cutting=cutting)(utterances))
    found = [piece for each in done for piece in each.pieces]
    sure, unsure = ([each for each in found if bool(each.reason) == reject] for reject in (False, True))
    for out, these in zip(outs, (sure, unsure), strict=True):
        write_whole(out, "".join(piece_lines(these, out)))
    rejected = [(entry.id, entry.location, entry.reason) for entry in utterances.rejected]
    rejected += [(each.utterance.id, each.utterance.location, each.reason) for each in done if each.reason]
    leave_out(rejected, None)
    advise(utterances, trained.tokenizer)
    print_differing([each.differing for each in done if each.differing])
    print(f"{about(sure)} in {outs[0]}; {about(unsure)} rejected, with reasons in {outs[1]}")
    if scores := [piece.score for piece in found if not math.isnan(piece.score)]:
        print(f"median score of the aligned pieces: {statistics.median(scores):.2f}")
    return len(rejected), len(utterances) + len(utterances.rejected)


def piece_lines(pieces: Sequence[UtterancePiece], out: Path) -> list[str]:
    """Lines of a manifest of pieces, with the score of each piece and the reason if the piece is uncertain."""
    lines = []
    for utterance, score, reason in pieces:
        fields = manifest_fields(utterance, str(out.parent.absolute()))
        fields["score"] = None if math.isnan(score) else round(score, 4)
        lines.append(json_line(fields | ({"reason": reason} if reason else {})))
    return lines


def about(pieces: Sequence[UtterancePiece]) -> str:
    hours = sum(piece.utterance.duration_s for piece in pieces) / 3600
    return f"{counted(len(pieces), 'piece')} ({hours:.2f} h)"


def of_rejections(rejections: Rejections) -> list[tuple[str, str, str]]:
    """Id, location and reason of each rejected utterance; the reason includes the value and the limit."""
    return [(each.id, each.location, each.detail) for each in rejections.entries]
