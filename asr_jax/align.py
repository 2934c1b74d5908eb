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

from asr_jax.command_line import run_command
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    records = read(options)
    if options.segment:
        segment(options, records)
    else:
        align(options, records)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    from asr_jax.decoding.transcript_files import FORMS
    from asr_jax.training.recognition_options import parse, recognition_parser

    parser = recognition_parser(prog="python -m asr_jax.align", description=__doc__, epilog="")
    parser.add_argument("run", type=Path, help="folder of a trained run with a CTC head, or a checkpoint")
    parser.add_argument("audio", nargs="?", help="one audio file, with --text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what is said in AUDIO")
    parser.add_argument("--data", nargs="+", metavar="MANIFEST", help="recordings with texts, instead")
    parser.add_argument("--out", type=Path, help="a file, or a folder with a file for each (standard output)")
    parser.add_argument(
        "--force", action="store_true", help="write alignments that are there already anew; pieces always are"
    )
    parser.add_argument("--format", choices=tuple(FORMS), default="json", help="(%(default)s)")
    parser.add_argument("--tokens", action="store_true", help="times of tokens too, in json and textgrid")
    cut = parser.add_argument_group("--segment")
    cut.add_argument("--segment", action="store_true", help="cut long audio into pieces; --out is their manifest")
    cut.add_argument("--rejects", type=Path, metavar="FILE", help="what is left out, and why (OUT.rejects.jsonl)")
    cut.add_argument("--max-seconds", type=float, default=20.0, help="of a piece (20)")
    cut.add_argument("--min-score", type=float, default=-0.3, help="pieces below are left out (-0.3)")
    options, flags = parse(parser, arguments)
    if flags:
        raise UserError(f"{flags[0]}: what is said is known here, and nothing is searched; expected no --decoding")
    if bool(options.data) == bool(options.audio) or bool(options.audio) != bool(options.text):
        raise UserError("expected recordings with their texts: --data MANIFEST …, or AUDIO --text FILE")
    if options.segment and not options.out:
        raise UserError("--segment needs --out: expected where the manifest of the pieces is to be written")
    if not options.max_seconds > 0:
        raise UserError(f"--max-seconds {options.max_seconds:g}: expected more than 0")
    return options


def read(options: argparse.Namespace) -> Any:
    """The recordings and what is said in them."""
    from asr_jax.audio.io import probe
    from asr_jax.data.reading import Records, read_records
    from asr_jax.data.records import Record

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

    from asr_jax.data.evaluation import NoRecords
    from asr_jax.decoding.transcript_files import Named
    from asr_jax.decoding.transcript_outputs import open_output
    from asr_jax.training import alignment
    from asr_jax.training.recognition_options import load, maker_of

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
        for record in data.index.records:
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
    from asr_jax.decoding.pieces import Cutting
    from asr_jax.training.recognition_options import load
    from asr_jax.training.segmentation import Segmenter

    rejects = options.rejects or options.out.with_name(options.out.stem + ".rejects.jsonl")
    for out in (options.out, rejects):
        check_writable(out)
    trained, cutting = load(options.run, options), Cutting(max_s=options.max_seconds, min_score=options.min_score)
    done = list(Segmenter(trained, cutting=cutting)(records))
    found = [piece for each in done for piece in each.pieces]
    sure, unsure = ([each for each in found if bool(each.reason) == reject] for reject in (False, True))
    options.out.write_text("".join(piece_lines(sure, options.out)), encoding="utf-8")
    rejects.write_text("".join(piece_lines(unsure, rejects)), encoding="utf-8")
    skipped = [(entry.id, entry.location, entry.reason) for entry in records.refused]
    skipped += [(each.record.id, each.record.location, each.reason) for each in done if each.reason]
    leave_out(skipped, None)
    print(f"{about(sure)} in {options.out}; {about(unsure)} left out, with reasons, in {rejects}")
    if scores := [piece.score for piece in found if not math.isnan(piece.score)]:
        print(f"half of the pieces that were heard score {statistics.median(scores):.2f} or more")
    if skipped:
        num = len(records) + len(records.refused)
        raise RunError(f"{len(skipped)} of {num} recordings could not be cut; the reasons are above")


def piece_lines(pieces: Sequence[Any], out: Path) -> list[str]:
    """Lines of a manifest, with the score and, where there is one, the reason."""
    from asr_jax.data.manifest import manifest_fields

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


if __name__ == "__main__":
    run_command(main)
