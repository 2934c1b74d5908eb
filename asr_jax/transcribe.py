"""Text of audio files: `python -m asr_jax.transcribe RUN FILES…` prints a line per file: path, tab, text."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from asr_jax.command_line import run_command
from asr_jax.core.errors import RunError, UserError


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.transcribe", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a trained run")
    parser.add_argument("files", nargs="+", metavar="FILE", help="audio files")
    parser.add_argument("--json", action="store_true", help="print an object per line instead: path, text, duration")
    parser.add_argument("--checkpoint", type=int, metavar="UPDATES", help="instead of the best by validation WER")
    options = parser.parse_args(arguments)

    from asr_jax.audio.io import AudioError, probe
    from asr_jax.data.reading import Records
    from asr_jax.data.records import Record
    from asr_jax.training.evaluate import recognise
    from asr_jax.training.trained import load_trained

    records, broken = [], 0
    for number, path in enumerate(options.files):
        try:
            records.append(Record(str(number), path, "", probe(path).duration_s))
        except AudioError as error:
            broken += 1
            print(f"skipped {error}", file=sys.stderr)
    if not records:
        raise UserError("none of the files is audio that can be read")
    trained = load_trained(options.run, updates=options.checkpoint)
    data = trained.plan(Records.of(records))
    found = recognise(trained.decoder(), trained.variables, data)
    texts = {data.index.records[row].id: transcript.text for row, transcript in found.transcripts.items()}
    reasons = {entry["id"]: entry["reason"] for entry in found.skipped + data.dropped.entries}
    for record in records:
        text = texts.get(record.id)
        if text is None:
            broken += 1
            print(f"skipped {record.location}: {reasons[record.id]}", file=sys.stderr)
        elif options.json:
            line = {"path": record.location, "text": text, "duration": record.duration_s}
            print(json.dumps(line, ensure_ascii=False))
        else:
            print(f"{record.location}\t{text}")
    if broken:
        raise RunError(f"{broken} of {len(options.files)} files could not be transcribed")


if __name__ == "__main__":
    run_command(main)
