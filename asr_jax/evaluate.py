"""Error rates of a run on manifests: `python -m asr_jax.evaluate RUN --data MANIFEST … [--json OUT]`.

A set's rate comes with the interval that holds it in 95 % of resamples, by bootstrap over its speakers. `--predictions`
of two runs are compared by `python -m asr_jax.compare`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.command_line import run_command
from asr_jax.core.errors import RunError, UserError
from asr_jax.observe.tables import console_for, percent, print_table, say


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a trained run")
    parser.add_argument("--data", nargs="+", required=True, metavar="MANIFEST", help="manifests to evaluate on")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures here")
    parser.add_argument("--checkpoint", type=int, metavar="UPDATES", help="instead of the best by validation WER")
    parser.add_argument("--predictions", type=Path, metavar="OUT", help="write a line of JSON per recording here")
    parser.add_argument(
        "--by", choices=("source", "speaker", "length"), default="source", help="rows below each set's (source)"
    )
    options = parser.parse_args(arguments)

    from asr_jax.data.reading import read_records
    from asr_jax.training.evaluate import evaluate, predictions
    from asr_jax.training.trained import load_trained

    for out in (options.json, options.predictions):
        if out:
            make_room(out)
    records = {manifest: read_records([manifest], role="validation") for manifest in options.data}
    trained = load_trained(options.run, updates=options.checkpoint)
    decoder, sets, rows = trained.decoder(), {}, []
    for manifest, of_set in records.items():
        data = trained.plan(of_set)
        counts, found = evaluate(decoder, trained.variables, data, workers=0, threads=2)
        sets[manifest] = counts
        rows += table_rows(manifest, counts, by=options.by)
        if options.predictions:
            with options.predictions.open("a" if len(sets) > 1 else "w") as file:
                file.writelines(
                    json.dumps(line, ensure_ascii=False) + "\n" for line in predictions(data, found, trained.tokenizer)
                )
        for entry in found.skipped:
            print(f"skipped {entry['id']}: {entry['location']}: {entry['reason']}")
    normaliser = trained.tokenizer.normaliser
    nothing = [manifest for manifest, counts in sets.items() if counts["wer"] is None]
    print_table(rows, title=f"{options.run}, checkpoint {trained.updates}, text normalised by {normaliser}")
    for manifest, counts in sets.items():
        say(console_for(), about(manifest, counts))
    if options.json:
        result = {"sets": sets, "run": str(options.run), "checkpoint": trained.updates, "normaliser": normaliser}
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if nothing:
        raise RunError(f"{', '.join(nothing)}: no word could be scored; the reasons are above")


def make_room(out: Path) -> None:
    """Makes the folder of a file to be written: what cannot be written should show before the work.

    Raises: UserError where it cannot.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):
            pass
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}; choose another place") from error


def table_rows(manifest: str, counts: dict[str, Any], *, by: str) -> list[dict[str, Any]]:
    """The set's row and, where it has several sources (or speakers, or classes of length), theirs."""
    groups = counts[f"by_{by}"]
    rows = [table_row(f"  {name or f'no {by}'}", group) for name, group in groups.items() if groups.keys() - {name}]
    return [table_row(manifest, counts) | {"skipped": counts["skipped"]}, *(row | {"skipped": ""} for row in rows)]


def table_row(name: str, counts: dict[str, Any]) -> dict[str, Any]:
    """One row of a result of `metrics.scoring.score`, the rate with its interval where there is one."""
    interval = counts.get("wer_interval")
    around = f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})" if interval else ""
    return {
        "set": name,
        "wer": percent(counts["wer"]) + around,
        "cer": percent(counts["cer"]),
        "S": counts["substitutions"],
        "D": counts["deletions"],
        "I": counts["insertions"],
        "words": counts["words"],
        "utterances": counts["utterances"],
    }


def about(manifest: str, counts: dict[str, Any]) -> str:
    """What the intervals are of, and which texts are empty."""
    bootstrap = counts["bootstrap"]
    said = f"{manifest}: "
    if counts["wer_interval"]:
        said += f"{100 * bootstrap['level']:g} % intervals by bootstrap over {bootstrap['units']} {bootstrap['over']}"
    else:
        said += "no interval: too few utterances"
    for what in ("reference", "hypothesis"):
        if ids := counts[f"empty_{what}_ids"]:
            said += f"; {len(ids)} with an empty {what}: {some(ids)}"
    return said


def some(ids: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")


if __name__ == "__main__":
    run_command(main)
