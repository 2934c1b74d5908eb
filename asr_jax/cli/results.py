"""Tables of what `asr_jax.evaluate` and `asr_jax.compare` find."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.data.batching.evaluation import WHOLE
from asr_jax.observe.tables import console_for, percent, print_table, say


def show(results: Sequence[Mapping[str, Any]], *, by: str) -> list[str]:
    """Prints a table of all runs and sets with error rates, with what is to be known of them, and one of those with
    losses; gives the sets of which nothing could be scored.
    """
    of_losses = [result for result in results if "decoding" not in result]
    results = [result for result in results if "decoding" in result]
    return (show_rates(results, by=by) if results else []) + (show_losses(of_losses) if of_losses else [])


def show_losses(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """As `show`."""
    rows = []
    for result in results:
        for manifest, figures in result["sets"].items():
            run = {"run": f"{Path(result['run']).name} {result['checkpoint']}"} if len(results) > 1 else {}
            counts = {name: figures[name] for name in ("utterances", "rejected")}
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
    """Of recordings that were rejected, and of those that were scored."""
    return sum(counts["rejected"] for counts in sets.values()), sum(counts["utterances"] for counts in sets.values())


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
    return [table_row(manifest, counts) | {"rejected": counts["rejected"]}, *(row | {"rejected": ""} for row in rows)]


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
