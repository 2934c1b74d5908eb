"""Compares two systems on the same utterances: `python -m asr_jax.compare A.jsonl B.jsonl [--json OUT]`.

A and B are files of `asr_jax.evaluate --predictions`, or lines of JSON with id, reference and hypothesis and,
optionally, set, source, speaker, duration_s and normaliser. Utterances are matched by set and id, or by id alone if
the files have no set in common. Prints the difference of the word error rates, its bootstrap interval over speakers,
and the p-value of NIST's matched pairs test (MAPSSWE): the probability of a difference of at least this size if both
systems are equally good.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from asr_jax.cli.results import some, table_row
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_no_input, check_writable, write_whole
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.settings import NonNegativeInt, command_options
from asr_jax.core.text_files import json_text
from asr_jax.metrics.comparison import compare
from asr_jax.observe.tables import console_for, percent, print_table, say
from asr_jax.observe.transcripts import aligned_lines
from asr_jax.reporting.predictions import one_normaliser, read_predictions
from asr_jax.text.normalise import CHOICES


@command_options
class CompareOptions:
    """Options of `asr_jax.compare`."""

    first: Annotated[Positional[Path], arg(metavar="A.jsonl")]
    """Predictions of the first system."""
    second: Annotated[Positional[Path], arg(metavar="B.jsonl")]
    """Predictions of the second system."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write all figures to, in JSON."""
    show: Annotated[NonNegativeInt, arg(metavar="N")] = 10
    """Number of utterances to show; those with the largest difference are shown."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = ""
    """Normaliser of references and hypotheses. Default: the one that the files name."""


def main(arguments: Sequence[str]) -> None:
    options = parse(CompareOptions, arguments, prog="python -m asr_jax.compare", about=__doc__)
    paths = (options.first, options.second)
    check_no_input("--json", options.json, paths)
    check_writable(options.json)
    systems = [read_predictions(path) for path in paths]
    normaliser = options.normaliser or one_normaliser(dict(zip(paths, systems, strict=True)))
    try:
        found = compare(*(system.recognised for system in systems), normaliser=normaliser, num_shown=options.show)
    except UserError as error:
        raise UserError(f"{options.first} (first) and {options.second} (second): {error}") from error
    rows = [table_row(str(path), found[name]) for path, name in zip(paths, ("first", "second"), strict=True)]
    print_table(
        rows,
        title=f"{counted(found['first']['utterances'], 'utterance')} in both files, text normalised by {normaliser}",
    )
    for line in (*_summary(found, paths), *_differing(found["differing"])):
        say(console_for(), line)
    if options.json:
        result = {"files": [str(path) for path in paths], **found}
        write_whole(options.json, json_text(result, indent=2) + "\n")


def _summary(found: dict[str, Any], paths: Sequence[Path]) -> Iterator[str]:
    """Yields the difference, its significance, and the utterances of one file alone."""
    difference, pairs = found["difference"], found["matched_pairs"]
    bootstrap = difference["bootstrap"]
    if difference["wer"] is not None and not difference["wer_interval"]:
        yield (
            f"difference, second minus first: {100 * difference['wer']:+.2f} points; no interval, since there are only "
            f"{bootstrap['units']} {bootstrap['over']}"
        )
    if difference["wer_interval"]:
        low, high = (100 * bound for bound in difference["wer_interval"])
        yield (
            f"difference, second minus first: {100 * difference['wer']:+.2f} points ({low:+.2f} to {high:+.2f} in "
            f"{100 * bootstrap['level']:g} % of {bootstrap['resamples']} resamples of {bootstrap['units']} "
            f"{bootstrap['over']}); the second has fewer errors in {percent(difference['probability_of_improvement'])}"
        )
    few = "; p is inaccurate for fewer than 50 segments" if pairs["segments"] < 50 else ""
    z = "" if pairs["z"] is None else f"z = {pairs['z']:.2f}, "
    none = "too few segments" if pairs["segments"] < 2 else "the difference is the same in all segments"
    p = f"no p-value: {none}" if pairs["p_value"] is None else f"p = {pairs['p_value']:.2g}"
    yield f"matched pairs (MAPSSWE): {z}{p}, {pairs['segments']} segments with an error of either system{few}"
    for path, name in zip(paths, ("only_first_ids", "only_second_ids"), strict=True):
        if found[name]:
            yield f"only in {path}, not compared: {counted(len(found[name]), 'utterance')}: {some(found[name])}"


def _differing(differing: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields each utterance with the words of both systems, aligned with the reference."""
    if differing:
        yield "utterances with the largest difference:"
    for row in differing:
        name = f"{row['set']} {row['id']}".strip()
        yield f"{name}: {row['first_errors']} errors of the first system, {row['second_errors']} of the second"
        for name in ("first", "second"):
            yield from (f"  {line}" for line in aligned_lines(row["reference"], row[name]))
