"""Text of audio of any format and length: `python -m asr_jax.transcribe RUN INPUT… [--format srt] [--out DIR]`.

An INPUT is an audio file, a folder (searched through), a list (`.txt`, a path per line), a manifest or data folder of any
kind that training reads, or `-`: standard input, audio if its first bytes are, else paths, one per line. Without --out,
results are printed in the order of the inputs: a line per file, path, tab, text. What cannot be read is named with its
reason, and the exit code is 1. With a folder as --out, what is there already is not done again.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.command_line import run_command
from asr_jax.core.errors import RunError, UserError


def main(arguments: Sequence[str]) -> None:
    options = _parsed(arguments)

    from asr_jax.data.audio_inputs import listed, with_durations
    from asr_jax.data.readers.folders import walking_once
    from asr_jax.data.records import Refused
    from asr_jax.decoding.pseudo_labels import PseudoLabels
    from asr_jax.decoding.transcript_outputs import open_output

    with tempfile.TemporaryDirectory(prefix="asr_jax-transcribe-") as folder, walking_once():
        kept = options.to_manifest.with_name(f"{options.to_manifest.stem}.audio") if options.to_manifest else None
        entries = listed(options.inputs, stdin=sys.stdin.buffer, folder=_place(kept) if kept else folder)
        output = open_output(options.form, options.out, [entry.id for entry in entries], force=options.force)
        todo = [entry for entry in entries if options.to_manifest or not output.has(entry.id)]
        if len(todo) < len(entries):
            print(f"{len(entries) - len(todo)} are in {options.out} already (--force writes them anew)", file=sys.stderr)
        entries = with_durations(todo)
        if not todo:
            return
        if all(isinstance(entry, Refused) for entry in entries):
            for entry in entries:
                print(f"skipped {entry.location}: {entry.reason}", file=sys.stderr)
            raise UserError("none of the inputs is audio that can be read")
        broken = _transcribe(options, entries, output)
    if broken:
        raise RunError(f"{broken} of {len(todo)} recordings could not be transcribed")


def _transcribe(options: Any, entries: Sequence[Any], output: Any) -> int:
    """How many could not be."""
    from asr_jax.data.records import Record, Refused
    from asr_jax.decoding.pseudo_labels import PseudoLabels
    from asr_jax.observe.meter import Meter
    from asr_jax.training.trained import load_trained
    from asr_jax.training.transcription import Transcribed, Transcriber

    records = [entry for entry in entries if isinstance(entry, Record)]
    trained = load_trained(options.run, updates=options.checkpoint)
    meter = Meter(sum(record.duration_s for record in records))
    transcriber = Transcriber(
        trained, make_decoder(trained, options), window_s=options.window_seconds, overlap_s=options.overlap_seconds,
        tell=meter.add,
    )  # fmt: skip
    ...
