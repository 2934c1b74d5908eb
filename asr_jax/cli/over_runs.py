"""Mean, standard deviation, best, worst and median over several runs, as in published tables of training stability."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asr_jax.observe.tables import percent, print_table

RATES = ("wer", "cer", "ter")
"""Measures in percent of which lower values are better."""


def over_runs(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Summarises the results of several runs.

    The standard deviation divides by the number of runs, as in NVIDIA's tables.

    Returns:
        A row for each head, set and measure that two runs or more have: `head` (for error rates), `set`, `measure`,
        `runs` (their number), `mean`, `std`, `best`, `best_run`, `worst`, `worst_run` and `median`.
    """
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    for result in results:
        run = f"{result['run']} {result['checkpoint']}"
        for manifest, figures in result["sets"].items():
            for measure, value in _measures(figures):
                found.setdefault((result.get("head", ""), manifest, measure), []).append((value, run))
    return [
        {"head": head, "set": manifest, "measure": measure, **_summary(values, lowest=not _is_higher_better(measure))}
        for (head, manifest, measure), values in found.items()
        if len(values) > 1
    ]


def show_over_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the rows of `over_runs` as a table, if there are any."""
    if not rows:
        return
    has_heads = len({row["head"] for row in rows}) > 1
    shown = []
    for row in rows:
        named = {name: row[name] for name in ("head", "set", "measure", "runs") if name != "head" or has_heads}
        figures = {name: _text(row["measure"], row[name]) for name in ("mean", "std", "best", "worst", "median")}
        shown.append(named | figures)
    print_table(shown, title="over all runs; the standard deviation divides by their number")


def _measures(figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the error rates of a set, or its loss and accuracies, without those that are None."""
    named = {name: figures.get(name) for name in (*RATES, "loss")}
    named |= {name: value for name, value in figures.get("metrics", {}).items() if _is_higher_better(name)}
    yield from ((name, value) for name, value in named.items() if value is not None)


def _is_higher_better(measure: str) -> bool:
    return measure.endswith("accuracy")


def _summary(values: Sequence[tuple[float, str]], *, lowest: bool) -> dict[str, Any]:
    """Returns the figures of some values, each with the name of its run; `lowest`: whether the lowest is the best."""
    ordered = sorted(values, key=lambda each: each[0], reverse=not lowest)
    numbers = [value for value, _ in values]
    return {
        "runs": len(values),
        "mean": statistics.fmean(numbers),
        "std": statistics.pstdev(numbers),
        "best": ordered[0][0],
        "best_run": ordered[0][1],
        "worst": ordered[-1][0],
        "worst_run": ordered[-1][1],
        "median": statistics.median(numbers),
    }


def _text(measure: str, value: float) -> str:
    return percent(value) if measure in RATES or _is_higher_better(measure) else f"{value:.4g}"
