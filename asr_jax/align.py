"""When each word is said: `python -m asr_jax.align RUN --data MANIFEST … | RUN AUDIO --text FILE`.

Prints a line of JSON per recording (CTM or TextGrids by --format). With --segment, long audio and its whole text are
cut at pauses into a manifest of pieces, with a score each; what is not sure goes into another file, with its reason.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.command_line import run_command
from asr_jax.core.errors import RunError, UserError


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)

    from asr_jax.training.trained import load_trained

    records = read(options)
    trained = load_trained(options.run, updates=options.checkpoint)
    if options.segment:
        segment(options, trained, records)
    else:
        align(options, trained, records)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m asr_jax.align", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a trained run with a CTC head")
    parser.add_argument("audio", nargs="?", help="one audio file, with --text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what is said in AUDIO")
    parser.add_argument("--data", nargs="+", metavar="MANIFEST", help="recordings with texts, instead")
    parser.add_argument("--out", type=Path, help="write here; a folder for textgrid (standard output)")
    parser.add_argument("--format", choices=("json", "ctm", "textgrid"), default="json", help="(json)")
    parser.add_argument("--tokens", action="store_true", help="times of tokens too (not in CTM)")
    parser.add_argument("--checkpoint", type=int, metavar="UPDATES", help="instead of the best by validation WER")
    cut = parser.add_argument_group("--segment")
    cut.add_argument("--segment", action="store_true", help="cut long audio into pieces; --out is their manifest")
    cut.add_argument("--rejects", type=Path, metavar="FILE", help="what is left out, and why (OUT.rejects.jsonl)")
    cut.add_argument("--max-seconds", type=float, default=20.0, help="of a piece (20)")
    cut.add_argument("--min-score", type=float, default=-0.3, help="pieces below are left out (-0.3)")
    options = parser.parse_args(arguments)
    if bool(options.data) == bool(options.audio) or bool(options.audio) != bool(options.text):
        raise UserError("expected recordings with their texts: --data MANIFEST …, or AUDIO --text FILE")
    if options.segment and not options.out:
        raise UserError("--segment needs --out: expected where the manifest of the pieces is to be written")
    if options.format == "textgrid" and not options.out and not options.segment:
        raise UserError("--format textgrid needs --out: expected a folder for a file per recording")
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


def align(options: argparse.Namespace, trained: Any, records: Any) -> None:
    from asr_jax.decoding.alignment_files import as_ctm, as_json, as_textgrid
    from asr_jax.evaluate import make_room
    from asr_jax.training import alignment

    if options.format == "textgrid":
        options.out.mkdir(parents=True, exist_ok=True)
    elif options.out:
        make_room(options.out)
    data = alignment.plan(trained, records)
    found = {entry.record.id: entry for entry in alignment.aligned_records(trained, data)}
    skipped = [(entry["id"], entry["location"], said(entry)) for entry in data.dropped.entries]
    lines = []
    for record in data.index.records:
        _, transcript, tokens, reason = found[record.id]
        if transcript is None:
            skipped.append((record.id, record.location, reason))
        elif options.format == "textgrid":
            grid = as_textgrid(transcript, tokens if options.tokens else (), duration_s=record.duration_s)
            (options.out / f"{record.id.replace('/', '_')}.TextGrid").write_text(grid, encoding="utf-8")
        elif options.format == "ctm":
            lines.append(as_ctm(record.id, transcript.words))
        else:
            fields = as_json(record.id, transcript, tokens if options.tokens else ())
            lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    if options.format != "textgrid":
        write(options.out, lines)
    for name, location, reason in skipped:
        print(f"skipped {name}: {location}: {reason}", file=sys.stderr)
    if skipped:
        print(f"{len(skipped)} of {len(records) + len(records.refused)} recordings are not aligned", file=sys.stderr)
    if all(entry.transcript is None for entry in found.values()):
        raise RunError("no recording could be aligned; the reasons are above")


def segment(options: argparse.Namespace, trained: Any, records: Any) -> None:
    from asr_jax.audio.io import AudioError
    from asr_jax.decoding.pieces import Cutting
    from asr_jax.evaluate import make_room
    from asr_jax.training.segmentation import Segmenter

    rejects = options.rejects or options.out.with_name(options.out.stem + ".rejects.jsonl")
    for out in (options.out, rejects):
        make_room(out)
    segmenter = Segmenter(trained, cutting=Cutting(max_s=options.max_seconds, min_score=options.min_score))
    found: list[Any] = []
    skipped = [(entry.id, entry.location, entry.reason) for entry in records.refused]
    for record in records:
        try:
            found += segmenter(record)
        except (AudioError, UserError) as error:
            skipped.append((record.id, record.location, str(error)))
    sure, unsure = ([each for each in found if bool(each.reason) == reject] for reject in (False, True))
    write(options.out, piece_lines(sure, options.out))
    write(rejects, piece_lines(unsure, rejects))
    for name, location, reason in skipped:
        print(f"skipped {name}: {location}: {reason}", file=sys.stderr)
    print(f"{about(sure)} in {options.out}; {about(unsure)} left out, with reasons, in {rejects}")
    if scores := [piece.score for piece in found if not math.isnan(piece.score)]:
        print(f"half of the pieces that were heard score {statistics.median(scores):.2f} or more")
    if not found:
        raise RunError("no recording could be cut; the reasons are above")


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


def said(entry: dict[str, Any]) -> str:
    """Why a record is left out, with the numbers."""
    value, limit = entry["value"], entry["limit"]
    more = "" if value is None else f" ({value}{'' if limit is None else f', needs {limit:g}'})"
    return entry["reason"] + more


def write(out: Path | None, lines: Sequence[str]) -> None:
    if out is None:
        sys.stdout.writelines(lines)
    else:
        out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
