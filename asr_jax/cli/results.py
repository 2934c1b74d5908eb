"""Tables of the results of `asr_jax.evaluate` and `asr_jax.compare`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.names import counted
from asr_jax.data.batching.removals import change_text
from asr_jax.data.batching.round_trip import lowest_rates, remedy
from asr_jax.observe.tables import console_for, percent, print_table, say
from asr_jax.observe.transcripts import aligned_lines
from asr_jax.text.invisible import invisible_characters
from asr_jax.text.removed import is_spoken

NO_SPACES = (
    "most words of the references follow each other without a space, so that CER is the measure; WER counts characters "
    "of scripts such as Han and kana, and words of dictionaries in Thai, Lao, Khmer and Burmese"
)
"""Remark on a set whose measure is the CER."""


def show(results: Sequence[Mapping[str, Any]], *, by: str) -> list[str]:
    """Prints a table of the error rates and a table of the losses; returns the sets without a scored utterance."""
    of_losses = [result for result in results if "decoding" not in result]
    results = [result for result in results if "decoding" in result]
    return (show_rates(results, by=by) if results else []) + (show_losses(of_losses) if of_losses else [])


def show_losses(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Prints a table of losses and metrics; returns the sets without an utterance."""
    rows = []
    for result in results:
        for manifest, figures in result["sets"].items():
            run = {"run": f"{Path(result['run']).name} {result['checkpoint']}"} if len(results) > 1 else {}
            counts = {name: figures[name] for name in ("utterances", "rejected")}
            parts = figures["losses"] | figures["metrics"]
            heads = {name.partition("/")[0] for name in parts}
            named = {name.partition("/")[2] if len(heads) == 1 else name: value for name, value in parts.items()}
            rows.append(run | {"set": manifest, "total": figures["loss"]} | named | counts)
    titles = [title(result) for result in results]
    print_table(rows, title=titles[0] if len(titles) == 1 else "")
    for line in titles[1:] and titles:
        say(console_for(), line)
    return [manifest for result in results for manifest, each in result["sets"].items() if not each["utterances"]]


def show_rates(results: Sequence[Mapping[str, Any]], *, by: str) -> list[str]:
    """Prints a table of error rates with remarks; returns the sets without a scored utterance."""
    are_several, normalisers = len(results) > 1, sorted({result["normaliser"] for result in results})
    rows = []
    for result in results:
        name = {"run": f"{Path(result['run']).name} {result['checkpoint']}"} if are_several else {}
        name |= {"head": result["head"]} if len({each["head"] for each in results}) > 1 else {}
        name |= {"normaliser": result["normaliser"]} if len(normalisers) > 1 else {}
        for manifest, counts in result["sets"].items():
            rows += [name | row for row in table_rows(manifest, counts, by=by)]
    if all(result["labels"] == "characters" for result in results):  # their errors are those of CER, and of spaces
        rows = [{column: value for column, value in row.items() if column != "ter"} for row in rows]
    titles = [title(result) for result in results]
    print_table(rows, title="" if are_several else titles[0])
    console = console_for()
    if len(normalisers) > 1:
        say(
            console,
            f"warning: the rates are not comparable, because the texts are normalised differently ("
            f"{', '.join(normalisers)}); --normaliser {normalisers[0]} scores all runs after the same normaliser",
            style="bold yellow",
        )
    for result, line in zip(results, titles, strict=True):
        if are_several:
            say(console, line)
        for manifest, counts in result["sets"].items():
            say(console, about(manifest, counts))
            if counts["measure"] == "cer":
                say(console, f"{manifest}: {NO_SPACES}")
            if before := counts.get("before_refinement"):
                say(console, about_refinement(manifest, before))
            if removed := about_removed(manifest, counts["removed"], result["normaliser"]):
                say(console, removed, style="bold yellow")
            if changed := about_round_trip(manifest, counts["round_trip"]):
                say(console, changed, style="bold yellow")
            say(console, about_confidence(manifest, counts["confidence"], is_calibrated=result["calibrated"]))
            if latency := counts.get("latency"):
                say(console, about_latency(manifest, latency))
            for line in about_worst(manifest, counts.get("worst", ())):
                say(console, line)
        for line in after_calibration(result.get("calibration")):
            say(console, line)
    return [manifest for result in results for manifest, counts in result["sets"].items() if counts["wer"] is None]


def about_refinement(manifest: str, before: Mapping[str, Any]) -> str:
    """Sentence about the error rates of a set before refinement, and about what refinement changed."""
    rates = f"{manifest}: before refinement {percent(before['wer'])} WER and {percent(before['cer'])} CER"
    if before["refined"] is None:
        return f"{rates}; no labels were recognised, and none were refined"
    words = "" if before["changed"] is None else f", {percent(before['changed'])} of the words changed"
    return f"{rates}; {percent(before['refined'])} of the labels were refined{words}"


def numbers(sets: Mapping[str, Any]) -> tuple[int, int]:
    """Number of rejected and number of scored utterances."""
    return sum(counts["rejected"] for counts in sets.values()), sum(counts["utterances"] for counts in sets.values())


def title(result: Mapping[str, Any]) -> str:
    """Description of a result: weights, precision and, for error rates, head, decoding and normaliser."""
    of_texts = ""
    if "decoding" in result:
        of_texts = f", head {result['head']}, {result['decoding']}, text normalised by {result['normaliser']}"
        of_texts += ", word errors by sclite's alignment" if result.get("alignment") == "sclite" else ""
    weights = f"{result['weights']} parameters, {result['precision']}"
    return f"{result['run']}, checkpoint {result['checkpoint']}, {weights}{of_texts}"


def table_rows(manifest: str, counts: dict[str, Any], *, by: str) -> list[dict[str, Any]]:
    """Row of a set and, if the set has several groups, one row for each group."""
    groups = counts[f"by_{by}"]
    rows = [table_row(f"  {name or f'no {by}'}", group) for name, group in groups.items() if groups.keys() - {name}]
    return [table_row(manifest, counts) | {"rejected": counts["rejected"]}, *(row | {"rejected": ""} for row in rows)]


def table_row(name: str, counts: dict[str, Any]) -> dict[str, Any]:
    """Row of a result of `metrics.scoring.score`, with the interval of the measure if there is one."""
    measure = counts.get("measure", "wer")
    interval = counts.get(f"{measure}_interval")
    around = f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})" if interval else ""
    return {
        "set": name,
        **{rate: percent(counts[rate]) + around * (rate == measure) for rate in ("wer", "cer")},
        "ter": percent(counts["ter"]),
        "S": counts["substitutions"],
        "D": counts["deletions"],
        "I": counts["insertions"],
        "words": counts["words"],
        "utterances": counts["utterances"],
    }


def about(manifest: str, counts: dict[str, Any]) -> str:
    """Remark on the intervals, the empty texts, and the utterances that were recognised in windows."""
    bootstrap = counts["bootstrap"]
    text = f"{manifest}: "
    if counts["wer_interval"]:
        text += f"{100 * bootstrap['level']:g} % intervals by bootstrap over {bootstrap['units']} {bootstrap['over']}"
        text += " (with fewer than 10, the intervals are too narrow)" if bootstrap["units"] < 10 else ""
    else:
        text += "no interval: too few utterances"
    for what in ("reference", "hypothesis"):
        if ids := counts[f"empty_{what}_ids"]:
            text += f"; {len(ids)} with an empty {what}: {some(ids)}"
    if ids := counts["windowed_ids"]:
        text += f"; {len(ids)} longer than {counts['max_duration_s']:g} s, recognised in windows: {some(ids)}"
    return text


def about_worst(manifest: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the utterances with the most word errors, each with its reference and hypothesis in aligned columns."""
    if rows:
        yield f"{manifest}: {counted(len(rows), 'utterance')} with the most word errors:"
    for row in rows:
        counts = f"S {row['substitutions']}  D {row['deletions']}  I {row['insertions']}"
        yield f"{row['id']}: {counts}  of {counted(row['words'], 'word')}, {row['location']}"
        yield from (f"  {line}" for line in aligned_lines(row["reference"], row["hypothesis"]))


def about_removed(manifest: str, removed: Mapping[str, Any], normaliser: str) -> str:
    """Remark on the characters of the references that the normaliser removes or replaces. Empty if there are none."""
    found = [each for each in removed["characters"] if is_spoken(each["character"])]
    unseen = [each for each in removed["characters"] if invisible_characters(each["character"])]
    if not found and not unseen:
        return ""
    share = f" {percent(removed['share'])} of the references' characters" if found else " invisible characters"
    first = (found or unseen)[0]
    return (
        f"warning: {manifest}: {normaliser} removes or replaces{share} ({_named(found + unseen)}), and the rates are "
        f"of the changed texts; for example in {first['id']}: {first['text'][:80]!r}"
    )


def about_round_trip(manifest: str, found: Mapping[str, Any]) -> str:
    """Remark on the references that labels write otherwise. Empty if there are none."""
    if not found["texts"]:
        return ""
    first, are = found["characters"][0], "is" if found["texts"] == 1 else "are"
    return (
        f"warning: {manifest}: {found['texts']:,} of {counted(found['num_texts'], 'reference')} {are} not what the "
        f"labels write ({_named(found['characters'])}): {lowest_rates(found['wer'], found['cer'])}; for example in "
        f"{first['id']}: {first['text'][:80]!r}; {remedy(found['normaliser'], '--normaliser')}"
    )


def _named(parts: Sequence[Mapping[str, Any]]) -> str:
    """The most frequent parts, with what is written for them, and their numbers."""
    pairs = [(change_text(each["character"], each.get("replacement", "")), each["times"]) for each in parts[:5]]
    return ", ".join(f"{change} {times:,} ×" for change, times in pairs) + " …" * (len(parts) > 5)


def about_confidence(manifest: str, report: Mapping[str, Any], *, is_calibrated: bool) -> str:
    """Remark on the confidence of words, beside the share of correct words."""
    if not report["words"]:
        return f"{manifest}: no word was recognised"
    return (
        f"{manifest}: mean confidence {percent(report['mean'], digits=1)}, {percent(report['right'], digits=1)} of the "
        f"words are correct; calibration error {percent(report['calibration_error'], digits=1)} "
        + ("(calibrated)" if is_calibrated else "(not calibrated: use --calibrate on validation data)")
    )


def about_latency(manifest: str, latency: Mapping[str, Any]) -> str:
    """Remark on the emission latency of a set."""
    left = f"; {counted(latency['without_alignment'], 'utterance')} without times" * (latency["without_alignment"] > 0)
    of_words = f"of {counted(latency['spoken_words'], 'spoken word')}{left}"
    if not latency["words"]:
        return f"{manifest}: no latency, because no word is right, {of_words}"
    parts = []
    for name in ("emission", "head", "tail"):
        values = latency[name]
        mean, *rest = (f"{1000 * values[each]:.0f}" for each in ("mean", "p50", "p90", "p99"))
        parts.append(f"{name} {mean} ms on average, {' / '.join(rest)} ms at 50 / 90 / 99 %")
    return f"{manifest}: latency: {'; '.join(parts)}; from {latency['words']:,} words that are right, {of_words}"


def after_calibration(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields a line on the result of --calibrate."""
    if found and found["words"] < 2:
        yield f"no calibration: it needs at least 2 recognised words, and there are {found['words']}"
    elif found:
        before, after = (percent(found[name], digits=1) for name in ("error_before", "error_after"))
        number = counted(found["words"], "word")
        yield f"calibrated on {number}: calibration error {before}, now {after}; in {found['file']}"


def some(ids: Sequence[str]) -> str:
    """The first five ids, for a message."""
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
