"""When each word is said: `python -m asr_jax.align RUN --data MANIFEST … | RUN AUDIO --text FILE`.

Prints a line of JSON per recording (CTM, TextGrids, subtitles by --format). With --segment, long audio and its whole
text are cut at pauses into a manifest of pieces, with a score each; what is not sure goes into another file, with its
reason.
"""

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable

FORM = "json"
MAX_SECONDS, MIN_SCORE = 20.0, -0.3
"""Of pieces, where nothing else is said."""


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    records = read(options)
    if options.segment:
        segment(options, records)
    else:
        align(options, records)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    from asr_jax.cli.recognition_options import parse, recognition_parser
    from asr_jax.transcripts.files import FORMS

    parser = recognition_parser(prog="python -m asr_jax.align", description=__doc__, epilog="")
    parser.add_argument("run", type=Path, help="folder of a trained run with a CTC head, or a checkpoint")
    parser.add_argument("audio", nargs="?", help="one audio file, with --text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what is said in AUDIO")
    parser.add_argument("--data", nargs="+", metavar="MANIFEST", help="recordings with texts, instead")
    parser.add_argument("--out", type=Path, help="a file, or a folder with a file for each (standard output)")
    parser.add_argument("--force", action="store_true", help="write what is there already anew")
    parser.add_argument("--format", choices=tuple(FORMS), help=f"({FORM})")
    parser.add_argument("--tokens", action="store_true", help="times of tokens too, in json and textgrid")
    cut = parser.add_argument_group("--segment")
    cut.add_argument("--segment", action="store_true", help="cut long audio into pieces; --out is their manifest")
    cut.add_argument("--rejects", type=Path, metavar="FILE", help="what is left out, and why (OUT.rejects.jsonl)")
    cut.add_argument("--max-seconds", type=float, help=f"of a piece ({MAX_SECONDS:g})")
    cut.add_argument("--min-score", type=float, help=f"pieces below are left out ({MIN_SCORE:g})")
    options, flags = parse(parser, arguments)
    if flags:
        raise UserError(f"{flags[0]}: what is said is known here, and nothing is searched; expected no --decoding")
    if bool(options.data) == bool(options.audio) or bool(options.audio) != bool(options.text):
        raise UserError("expected recordings with their texts: --data MANIFEST …, or AUDIO --text FILE")
    if options.segment:
        check_cut(options)
    else:
        check_whole(options)
    return options


def check_whole(options: argparse.Namespace) -> None:
    """Without --segment. Raises: UserError for options that would do nothing."""
    if given := given_flags(options, "rejects", "max_seconds", "min_score"):
        raise UserError(f"{given} without --segment: nothing is cut; expected --segment, or no {given}")
    options.format = options.format or FORM


def check_cut(options: argparse.Namespace) -> None:
    """With --segment, whose defaults it fills in. Raises: UserError for options that cannot be, and files that are
    there."""
    if given := given_flags(options, "format", "tokens"):
        raise UserError(f"{given} with --segment: a manifest of pieces is written; expected one of the two")
    if not options.out:
        raise UserError("--segment needs --out: expected where the manifest of the pieces is to be written")
    options.max_seconds = MAX_SECONDS if options.max_seconds is None else options.max_seconds
    options.min_score = MIN_SCORE if options.min_score is None else options.min_score
    if not 0 < options.max_seconds < math.inf:
        raise UserError(f"--max-seconds {options.max_seconds:g}: expected more than 0")
    if not options.min_score <= 0:
        raise UserError(f"--min-score {options.min_score:g}: expected 0 or less, since scores are log-probabilities")
    options.rejects = options.rejects or options.out.with_name(options.out.stem + ".rejects.jsonl")
    if options.rejects.absolute() == options.out.absolute():
        raise UserError(f"--out and --rejects are both {options.out}: expected two files")
    for name in ("out", "rejects"):
        if (path := getattr(options, name)).exists() and not options.force:
            raise UserError(f"{path} is there already: give another --{name}, or --force")


def given_flags(options: argparse.Namespace, *names: str) -> str:
    """The flags of those that were given, for a message."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(options, name) not in (None, False))


def read(options: argparse.Namespace) -> Any:
    """The recordings and what is said in them."""
    from asr_jax.audio.io import probe
    from asr_jax.data.manifests.reading import Records, read_records
    from asr_jax.data.manifests.records import Record

    if options.data:
        return read_records(options.data, role="validation")
    try:
        text = " ".join(options.text.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text {options.text} cannot be read: {error}; expected text in UTF-8") from error
    record = Record(Path(options.audio).stem, options.audio, text, probe(options.audio).duration_s)
    return Records.of([record])


def align(options: argparse.Namespace, records: Any) -> None:
    import numpy as np

    from asr_jax.cli.recognition_options import load, maker_of
    from asr_jax.data.batching.evaluation import NoRecords
    from asr_jax.inference import aligning as alignment
    from asr_jax.transcripts.files import Named
    from asr_jax.transcripts.outputs import open_output

    maker = functools.partial(maker_of, options.run, options, None)
    output = open_output(options.format, options.out, list(records), force=options.force, maker=maker)
    todo = [place for place, record in enumerate(records) if not output.has(record.id)]
    if len(todo) < len(records):
        print(f"{len(records) - len(todo)} are in {options.out} already (--force: anew)", file=sys.stderr)
    if len(records) and not todo:
        return
    with output:
        records, trained = records.select(np.array(todo, np.int32)), load(options.run, options)
        try:
            data = alignment.plan(trained, records)
        except NoRecords as error:
            leave_out(of_dropped(error.dropped), output)
            raise
        found = {entry.record.id: entry for entry in alignment.aligned_records(trained, data)}
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


def leave_out(entries: Iterable[tuple[str, str, str]], output: Any) -> None:
    """Names what is not aligned, here and where the output does."""
    for name, location, reason in entries:
        print(f"skipped {name}: {location}: {reason}", file=sys.stderr)
        if output:
            output.skip(name, location, reason)


def segment(options: argparse.Namespace, records: Any) -> None:
    from asr_jax.alignment.cutting import Cutting
    from asr_jax.cli.recognition_options import load
    from asr_jax.core.files import write_whole
    from asr_jax.inference.segmenting import Segmenter

    for out in (options.out, options.rejects):
        check_writable(out)
    trained, cutting = load(options.run, options), Cutting(max_s=options.max_seconds, min_score=options.min_score)
    done = list(Segmenter(trained, cutting=cutting)(records))
    found = [piece for each in done for piece in each.pieces]
    sure, unsure = ([each for each in found if bool(each.reason) == reject] for reject in (False, True))
    for out, these in ((options.out, sure), (options.rejects, unsure)):
        write_whole(out, "".join(piece_lines(these, out)))
    skipped = [(entry.id, entry.location, entry.reason) for entry in records.refused]
    skipped += [(each.record.id, each.record.location, each.reason) for each in done if each.reason]
    leave_out(skipped, None)
    print(f"{about(sure)} in {options.out}; {about(unsure)} left out, with reasons, in {options.rejects}")
    if scores := [piece.score for piece in found if not math.isnan(piece.score)]:
        print(f"half of the pieces that were heard score {statistics.median(scores):.2f} or more")
    if skipped:
        num = len(records) + len(records.refused)
        raise RunError(f"{len(skipped)} of {num} recordings could not be cut; the reasons are above")


def piece_lines(pieces: Sequence[Any], out: Path) -> list[str]:
    """Lines of a manifest, with the score and, where there is one, the reason."""
    from asr_jax.data.manifests.manifest import manifest_fields

    lines = []
    for record, score, reason in pieces:
        fields = manifest_fields(record, str(out.parent.absolute()))
        fields["score"] = None if math.isnan(score) else round(score, 4)
        lines.append(json.dumps(fields | ({"reason": reason} if reason else {}), ensure_ascii=False) + "\n")
    return lines


def about(pieces: Sequence[Any]) -> str:
    hours = sum(piece.record.duration_s for piece in pieces) / 3600
    return f"{len(pieces)} pieces of {hours:.2f} h"


def of_dropped(dropped: Any) -> list[tuple[str, str, str]]:
    """Id, location and reason of each record, the reason with its numbers."""
    found = []
    for entry in dropped.entries:
        value, limit = entry["value"], entry["limit"]
        more = "" if value is None else f" ({value}{'' if limit is None else f', needs {limit:g}'})"
        found.append((entry["id"], entry["location"], entry["reason"] + more))
    return found
