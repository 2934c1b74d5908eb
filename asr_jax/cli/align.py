"""When each word is said: `python -m asr_jax.align RUN --data MANIFEST … | RUN AUDIO --text FILE`.

Prints a line of JSON per recording (CTM, TextGrids, subtitles by --format). With --segment, long audio and its whole
text are cut at pauses into a manifest of pieces, with a score each; what is not sure goes into another file, with its
reason.
"""

import functools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from asr_jax.alignment.cutting import Cutting
from asr_jax.audio.io import probe
from asr_jax.cli.recognition_options import RecognitionOptions, load, maker_of, parse_recognition
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.data.batching.evaluation import NoRecords
from asr_jax.data.batching.filters import Dropped
from asr_jax.data.manifests.manifest import manifest_fields
from asr_jax.data.manifests.reading import Records, read_records
from asr_jax.data.manifests.records import Record
from asr_jax.inference import aligning
from asr_jax.inference.segmenting import RecordPiece, Segmenter
from asr_jax.transcripts.files import FormName, Named
from asr_jax.transcripts.outputs import Output, open_output


@dataclass(frozen=True, kw_only=True)
class AlignOptions(RecognitionOptions):
    """Options of `asr_jax.align`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a trained run with a CTC head, or a checkpoint."""
    audio: Annotated[Positional[str | None], arg(metavar="AUDIO")] = None
    """One audio file, with --text."""
    text: Annotated[Path | None, arg(metavar="FILE")] = None
    """File with the text of AUDIO."""
    data: Annotated[tuple[str, ...], arg(metavar="MANIFEST …")] = ()
    """Recordings with texts, instead of AUDIO and --text."""
    out: Path | None = None
    """A file, or a folder with a file for each recording. Default: standard output."""
    force: bool = False
    """Write alignments again that are there already."""
    format: FormName | None = None
    """Format of the alignments. Default: json."""
    tokens: bool = False
    """Write times of tokens too, in json and textgrid."""
    segment: bool = False
    """Cut long audio into pieces; --out is their manifest."""
    rejects: Annotated[Path | None, arg(metavar="FILE")] = None
    """File for the pieces that are left out, with reasons. Default: OUT.rejects.jsonl."""
    max_seconds: float | None = None
    """Longest piece. Default: 20, with --segment."""
    min_score: float | None = None
    """Pieces with a lower score are left out. Default: -0.3, with --segment."""


@dataclass(frozen=True)
class Cut:
    """What --segment writes, and by which rules."""

    out: Path
    rejects: Path
    rules: Cutting


def main(arguments: Sequence[str]) -> None:
    options, flags = parse_recognition(AlignOptions, arguments, prog="python -m asr_jax.align", about=__doc__)
    if flags:
        raise UserError(f"{flags[0]}: the text is known here, and nothing is searched; expected no --decoding")
    if bool(options.data) == bool(options.audio) or bool(options.audio) != bool(options.text):
        raise UserError("expected recordings with their texts: --data MANIFEST …, or AUDIO --text FILE")
    if options.segment:
        cut = cut_of(options)
        segment(options, cut, read(options))
    else:
        check_whole(options)
        align(options, read(options))


def check_whole(options: AlignOptions) -> None:
    """Without --segment. Raises: UserError for options that would do nothing."""
    if given := given_flags(options, "rejects", "max_seconds", "min_score"):
        raise UserError(f"{given} without --segment: nothing is cut; expected --segment, or no {given}")


def cut_of(options: AlignOptions) -> Cut:
    """With --segment. Raises: UserError for options that cannot be used with it, and for files that exist."""
    if given := given_flags(options, "format", "tokens"):
        raise UserError(f"{given} with --segment: a manifest of pieces is written; expected one of the two")
    if not options.out:
        raise UserError("--segment needs --out: expected where the manifest of the pieces is to be written")
    max_s = Cutting.max_s if options.max_seconds is None else options.max_seconds
    min_score = Cutting.min_score if options.min_score is None else options.min_score
    if not 0 < max_s < math.inf:
        raise UserError(f"--max-seconds {max_s:g}: expected more than 0")
    if not min_score <= 0:
        raise UserError(f"--min-score {min_score:g}: expected 0 or less, since scores are log-probabilities")
    rejects = options.rejects or options.out.with_name(options.out.stem + ".rejects.jsonl")
    if rejects.absolute() == options.out.absolute():
        raise UserError(f"--out and --rejects are both {options.out}: expected two files")
    for name, path in (("out", options.out), ("rejects", rejects)):
        if path.exists() and not options.force:
            raise UserError(f"{path} is there already: give another --{name}, or --force")
    return Cut(options.out, rejects, Cutting(max_s=max_s, min_score=min_score))


def given_flags(options: AlignOptions, *names: str) -> str:
    """The flags of those that were given, for a message."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(options, name) not in (None, False))


def read(options: AlignOptions) -> Records:
    """The recordings with their texts."""
    if options.data:
        return read_records(options.data, role="validation")
    assert options.text is not None
    assert options.audio is not None
    try:
        text = " ".join(options.text.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text {options.text} cannot be read: {error}; expected text in UTF-8") from error
    record = Record(Path(options.audio).stem, options.audio, text, probe(options.audio).duration_s)
    return Records.of([record])


def align(options: AlignOptions, records: Records) -> None:
    maker = functools.partial(maker_of, options.run, options, None)
    output = open_output(options.format or "json", options.out, list(records), force=options.force, maker=maker)
    todo = [place for place, record in enumerate(records) if not output.has(record.id)]
    if len(todo) < len(records):
        print(f"{len(records) - len(todo)} are in {options.out} already (--force: anew)", file=sys.stderr)
    if len(records) and not todo:
        return
    with output:
        records, trained = records.select(np.array(todo, np.int32)), load(options.run, options)
        try:
            data = aligning.plan(trained, records)
        except NoRecords as error:
            leave_out(of_dropped(error.dropped), output)
            raise
        found = {entry.record.id: entry for entry in aligning.aligned_records(trained, data)}
        skipped = of_dropped(data.dropped)
        for record in filter(lambda record: record.id in found, records):
            _, transcript, tokens, reason = found[record.id]
            if transcript is None:
                skipped.append((record.id, record.location, reason))
            else:
                output.write(Named.of(record, transcript, tokens=tokens if options.tokens else ()))
        leave_out(skipped, output)
    if skipped:
        num = len(records) + len(records.refused)
        raise RunError(f"{len(skipped)} of {num} recordings could not be aligned; the reasons are above")


def leave_out(entries: Iterable[tuple[str, str, str]], output: Output | None) -> None:
    """Names what is not aligned, here and where the output does."""
    for name, location, reason in entries:
        print(f"skipped {name}: {location}: {reason}", file=sys.stderr)
        if output:
            output.skip(name, location, reason)


def segment(options: AlignOptions, cut: Cut, records: Records) -> None:
    for out in (cut.out, cut.rejects):
        check_writable(out)
    trained = load(options.run, options)
    done = list(Segmenter(trained, cutting=cut.rules)(records))
    found = [piece for each in done for piece in each.pieces]
    sure, unsure = ([each for each in found if bool(each.reason) == reject] for reject in (False, True))
    for out, these in ((cut.out, sure), (cut.rejects, unsure)):
        write_whole(out, "".join(piece_lines(these, out)))
    skipped = [(entry.id, entry.location, entry.reason) for entry in records.refused]
    skipped += [(each.record.id, each.record.location, each.reason) for each in done if each.reason]
    leave_out(skipped, None)
    print(f"{about(sure)} in {cut.out}; {about(unsure)} left out, with reasons, in {cut.rejects}")
    if scores := [piece.score for piece in found if not math.isnan(piece.score)]:
        print(f"half of the pieces that were heard score {statistics.median(scores):.2f} or more")
    if skipped:
        num = len(records) + len(records.refused)
        raise RunError(f"{len(skipped)} of {num} recordings could not be cut; the reasons are above")


def piece_lines(pieces: Sequence[RecordPiece], out: Path) -> list[str]:
    """Lines of a manifest, with the score and, where there is one, the reason."""
    lines = []
    for record, score, reason in pieces:
        fields = manifest_fields(record, str(out.parent.absolute()))
        fields["score"] = None if math.isnan(score) else round(score, 4)
        lines.append(json.dumps(fields | ({"reason": reason} if reason else {}), ensure_ascii=False) + "\n")
    return lines


def about(pieces: Sequence[RecordPiece]) -> str:
    hours = sum(piece.record.duration_s for piece in pieces) / 3600
    return f"{len(pieces)} pieces of {hours:.2f} h"


def of_dropped(dropped: Dropped) -> list[tuple[str, str, str]]:
    """Id, location and reason of each record, the reason with its numbers."""
    found = []
    for entry in dropped.entries:
        value, limit = entry["value"], entry["limit"]
        more = "" if value is None else f" ({value}{'' if limit is None else f', needs {limit:g}'})"
        found.append((entry["id"], entry["location"], entry["reason"] + more))
    return found
