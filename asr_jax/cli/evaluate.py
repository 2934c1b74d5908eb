"""Error rates of runs on manifests: `python -m asr_jax.evaluate RUN … --data MANIFEST … [--json OUT]`.

A set's rate comes with the interval that holds it in 95 % of resamples, by bootstrap over its speakers. `--predictions`
of two runs are compared by `python -m asr_jax.compare`. Of a run that was only pre-trained: its losses and metrics.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable
from asr_jax.observe.tables import console_for, percent, print_table, say


def main(arguments: Sequence[str]) -> None:
    from asr_jax.cli.recognition_options import decoding_of, head_option, load, parse, recognition_parser

    parser = recognition_parser(prog="python -m asr_jax.evaluate", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a trained run, or a checkpoint")
    parser.add_argument("--data", nargs="+", required=True, metavar="MANIFEST", help="manifests to evaluate on")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures here")
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="OUT",
        help="write a line of JSON per recording here; a folder for several RUNs",
    )
    parser.add_argument(
        "--log-probs", type=Path, metavar="OUT", help="write them to OUT.safetensors, or as .npy files into a folder"
    )
    parser.add_argument(
        "--by", choices=("source", "speaker", "length"), default="source", help="rows below each set's (source)"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="fit the words' confidence on these sets and keep that with the run"
    )
    head_option(parser, are_several=True)
    options, flags = parse(parser, arguments)
    several = len(options.runs) > 1 or len(options.head) > 1
    if several and options.log_probs:
        raise UserError(
            f"--log-probs with {len(options.runs)} runs and {len(options.head)} heads: expected one of each; call it "
            "once for each"
        )
    if len(set(options.head)) < len(options.head):
        raise UserError(f"--head {' '.join(options.head)}: a head is named twice; expected each once")

    check_names(options)

    from asr_jax.data.manifests.readers.base import ReadOptions
    from asr_jax.data.manifests.reading import read_records

    in_folder = bool(options.log_probs) and options.log_probs.suffix != ".safetensors"
    for out, is_folder in ((options.json, False), (options.predictions, several), (options.log_probs, in_folder)):
        if out:
            check_writable(out, is_folder=is_folder)
    how = ReadOptions(texts_may_lack=not any(map(recognises, options.runs)))
    records = {manifest: read_records([manifest], role="validation", options=how) for manifest in options.data}
    if options.log_probs:
        from asr_jax.inference.log_probs import check_ids

        check_ids(options.log_probs, records)
    results = []
    for run in options.runs:
        if recognises(run):
            trained = load(run, options)
            for name in options.head:
                head = name or trained.model.recognising
                decoding = decoding_of(flags, trained.experiment.model.decoding_of(head))
                results.append(evaluate_run(trained, head, decoding, records, options))
        else:
            check_options_of_losses(run, options, flags)
            results.append(evaluate_losses(load(run, options), records))
    nothing = show(results, by=options.by)
    if options.json:
        options.json.write_text(json.dumps({"runs": results}, indent=2, ensure_ascii=False) + "\n")
    if nothing:
        raise RunError(f"{', '.join(nothing)}: nothing could be scored; the reasons are above")
    skipped, scored = max(numbers(result["sets"]) for result in results)
    if skipped:
        raise RunError(
            f"{skipped} of {skipped + scored} recordings could not be evaluated, and no rate counts them; the reasons "
            "are above"
        )


def evaluate_run(
    trained: Any, head: str, decoding: Any, records: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """What one set of weights gives on all sets: what it is, and the counts of each set."""
    import numpy as np

    from asr_jax.inference.calibration import calibrate
    from asr_jax.inference.log_probs import LogProbs
    from asr_jax.inference.recognition import judged_words, predictions, scored
    from asr_jax.inference.transcription import recognise_all

    decoder = trained.decoder(decoding, head=head, is_raw=options.calibrate, gives_log_probs=bool(options.log_probs))
    log_probs = options.log_probs and LogProbs(
        options.log_probs, trained.tokenizer, frame_s=decoder.search.writer.times.shift_s
    )
    sets, recognised = {}, []
    for manifest, of_set in records.items():
        data = trained.plan(of_set, has_windows=True)
        if log_probs:
            log_probs.begin(manifest)
        counts, found = scored(data, recognise_all(trained, decoder, data, log_probs=log_probs), trained.tokenizer)
        windowed = [data.index.records[row].id for row in data.windowed_rows if row in found.transcripts]
        sets[manifest] = counts | {"windowed_ids": windowed}
        recognised.append((data, found))
        for entry in found.skipped:
            print(f"skipped {entry['id']}: {entry['location']}: {entry['reason']}", file=sys.stderr)
    if log_probs:
        log_probs.close()
    if options.predictions:
        several = len(options.runs) > 1 or len(options.head) > 1
        out = predictions_of(
            options.predictions, trained, is_folder=several, head=head if len(options.head) > 1 else ""
        )
        with out.open("w") as file:
            for manifest, (data, found) in zip(records, recognised, strict=True):
                lines = ({"set": manifest} | line for line in predictions(data, found, trained.tokenizer))
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    result = what_it_is(trained) | {
        "head": head,
        "decoding": str(decoding),
        "normaliser": trained.tokenizer.normaliser,
        "calibrated": decoder.calibration is not None,
        "sets": sets,
    }
    if options.calibrate:
        judged = [judged_words(data, found, trained.tokenizer) for data, found in recognised]
        confidences, is_right = (np.concatenate(each) for each in zip(*judged, strict=True))
        result["calibration"] = calibrate(
            trained.folder, trained.updates, trained.weights, decoding, confidences, is_right,
            head=trained.other_than_primary(head),
        )  # fmt: skip
    return result


def recognises(run: Path) -> bool:
    """Whether a run finds texts; True where there is none, of which its loading tells."""
    from asr_jax.config import load_experiment
    from asr_jax.core.run_folder import EXPERIMENT

    path = run_folder(run.resolve()) / EXPERIMENT
    return not path.exists() or load_experiment(path).model.recognises


def check_options_of_losses(run: Path, options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Raises: UserError where texts are asked for of a run that finds none."""
    names = ("predictions", "log_probs", "calibrate")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)] + list(flags[:1])
    given += ["--head"] * any(options.head)
    if given:
        raise UserError(f"{run} was only pre-trained and finds no texts: expected no {given[0]}")


def evaluate_losses(trained: Any, records: Mapping[str, Any]) -> dict[str, Any]:
    """What one set of weights that finds no texts gives on all sets: what it is, and the losses of each set."""
    from asr_jax.inference.losses import measure

    losses, sets = trained.losses(), {}
    for manifest, of_set in records.items():
        figures, skipped = measure(losses, trained.variables, trained.plan(of_set, has_windows=True))
        sets[manifest] = figures
        for entry in skipped:
            print(f"skipped {entry['id']}: {entry['location']}: {entry['reason']}", file=sys.stderr)
    return what_it_is(trained) | {"sets": sets}


def what_it_is(trained: Any) -> dict[str, Any]:
    """Which weights a result is of, and what they are computed in."""
    return {
        "run": str(trained.folder),
        "checkpoint": trained.updates,
        "weights": trained.weights,
        "precision": trained.experiment.training.precision,
    }


def check_names(options: argparse.Namespace) -> None:
    """Raises: UserError where two sets, or the files of two runs, would have one name."""
    if len(set(options.data)) < len(options.data):
        raise UserError(f"--data {' '.join(options.data)}: a set is named twice; expected each once")
    names = [run.resolve() for run in options.runs]
    if len(set(names)) < len(names):
        raise UserError(f"{' '.join(map(str, options.runs))}: a run is named twice; expected each once")
    folders = {run_folder(run) for run in names}
    if options.predictions and len({folder.name for folder in folders}) < len(folders):
        raise UserError(
            f"--predictions with runs of the same name ({', '.join(map(str, options.runs))}): their files would have "
            "one name; expected other names, or one call for each"
        )


def run_folder(run: Path) -> Path:
    """Of a run, or of one of its checkpoints."""
    return run.parent.parent if run.name.isdecimal() else run


def predictions_of(path: Path, trained: Any, *, is_folder: bool, head: str = "") -> Path:
    """The file of a run's predictions: the path itself, or one in it named by run, checkpoint and head."""
    if is_folder:
        path = path / f"{trained.folder.name}-{trained.updates}{f'-{head}' * bool(head)}.jsonl"
        check_writable(path)
    return path


def show(results: Sequence[Mapping[str, Any]], *, by: str) -> list[str]:
    """Prints a table of all runs and sets with error rates, with what is to be known of them, and one of those with
    losses; gives the sets of which nothing could be scored."""
    of_losses = [result for result in results if "decoding" not in result]
    results = [result for result in results if "decoding" in result]
    return (show_rates(results, by=by) if results else []) + (show_losses(of_losses) if of_losses else [])


def show_losses(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """As `show`."""
    rows = []
    for result in results:
        for manifest, figures in result["sets"].items():
            run = {"run": f"{Path(result['run']).name} {result['checkpoint']}"} if len(results) > 1 else {}
            counts = {name: figures[name] for name in ("utterances", "skipped")}
            parts = figures["losses"] | figures["metrics"]
            heads = {name.partition("/")[0] for name in parts}
            named = {name.partition("/")[2] if len(heads) == 1 else name: value for name, value in parts.items()}
            rows.append(run | {"set": manifest, "total": figures["loss"]} | named | counts)
    told = [title(result) for result in results]
    print_table(rows, title=told[0] if len(told) == 1 else "")
    for line in told[1:] and told:
        say(console_for(), line)
    return [manifest for result in results for manifest, each in result["sets"].items() if not each["utterances"]]


def show_rates(results: Sequence[Mapping[str, Any]], *, by: str) -> list[str]:
    """As `show`."""
    are_several = len(results) > 1
    rows = []
    for result in results:
        name = {"run": f"{Path(result['run']).name} {result['checkpoint']}"} if are_several else {}
        name |= {"head": result["head"]} if len({each["head"] for each in results}) > 1 else {}
        for manifest, counts in result["sets"].items():
            rows += [name | row for row in table_rows(manifest, counts, by=by)]
    told = [title(result) for result in results]
    print_table(rows, title="" if are_several else told[0])
    console = console_for()
    for result, line in zip(results, told, strict=True):
        if are_several:
            say(console, line)
        for manifest, counts in result["sets"].items():
            say(console, about(manifest, counts))
            say(console, about_confidence(manifest, counts["confidence"], is_calibrated=result["calibrated"]))
        for line in after_calibration(result.get("calibration")):
            say(console, line)
    return [manifest for result in results for manifest, counts in result["sets"].items() if counts["wer"] is None]


def numbers(sets: Mapping[str, Any]) -> tuple[int, int]:
    """Of recordings that were skipped, and of those that were scored."""
    return sum(counts["skipped"] for counts in sets.values()), sum(counts["utterances"] for counts in sets.values())


def title(result: Mapping[str, Any]) -> str:
    """Which weights a result is of, and how it was made."""
    of_texts = ""
    if "decoding" in result:
        of_texts = f", head {result['head']}, {result['decoding']}, text normalised by {result['normaliser']}"
    weights = f"{result['weights']} weights, {result['precision']}"
    return f"{result['run']}, checkpoint {result['checkpoint']}, {weights}{of_texts}"


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
    """What the intervals are of, which texts are empty, and which recordings were not computed at once."""
    from asr_jax.data.batching.evaluation import WHOLE

    bootstrap = counts["bootstrap"]
    said = f"{manifest}: "
    if counts["wer_interval"]:
        said += f"{100 * bootstrap['level']:g} % intervals by bootstrap over {bootstrap['units']} {bootstrap['over']}"
        said += ", fewer than 10 of which make them too narrow" if bootstrap["units"] < 10 else ""
    else:
        said += "no interval: too few utterances"
    for what in ("reference", "hypothesis"):
        if ids := counts[f"empty_{what}_ids"]:
            said += f"; {len(ids)} with an empty {what}: {some(ids)}"
    if ids := counts["windowed_ids"]:
        said += f"; {len(ids)} more than {WHOLE} × as long as training's longest, heard by windows: {some(ids)}"
    return said


def about_confidence(manifest: str, report: Mapping[str, Any], *, is_calibrated: bool) -> str:
    """How far words can be trusted."""
    if not report["words"]:
        return f"{manifest}: no word was recognised"
    return (
        f"{manifest}: mean confidence {percent(report['mean'], digits=1)}, {percent(report['right'], digits=1)} of the "
        f"words are right; calibration error {percent(report['calibration_error'], digits=1)} "
        + ("(calibrated)" if is_calibrated else "(not calibrated: --calibrate on validation data)")
    )


def after_calibration(found: Mapping[str, Any] | None) -> Iterator[str]:
    """What fitting gave."""
    if found and found["words"] < 2:
        yield f"{found['words']} words were recognised: too few to calibrate by"
    elif found:
        before, after = (percent(found[name], digits=1) for name in ("error_before", "error_after"))
        yield f"calibrated on {found['words']:,} words: calibration error {before}, then {after}; in {found['file']}"


def some(ids: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
