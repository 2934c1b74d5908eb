"""Charts of a report: Matplotlib's SVG, whose colours follow the page, light or dark."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asr_jax.metrics.confidence import NUM_BINS
from asr_jax.observe.curves import COLOURS, FAINT, GREY, INK, compared_curves, curves_of
from asr_jax.reporting.systems import System, utterance_rates

STYLES = {INK: "ink", GREY: "grey", "#999999": "grey", FAINT: "faint", "#ffffff": "ground"} | {
    colour: f"line{number}" for number, colour in enumerate(COLOURS, start=1)
}
"""Custom properties of the page's style by the colour that stands for them in a figure."""
MOST_BARS = 20
"""Largest number of groups that are drawn; the table has all."""
HATCHES = ("", "///")
"""Patterns of the bars of both systems, so that colour is not needed to tell them apart."""
MARKERS = ("o", "^")


def svg_of(figure: Figure, name: str) -> str:
    """Returns a figure as an SVG element, with text as text, for a page that has several of them.

    Args:
        name: Name that makes the ids of the element unique in the page.
    """
    file = io.StringIO()
    how: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}
    with warnings.catch_warnings(), matplotlib.rc_context(how):
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has fonts for what Matplotlib's font lacks
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    return re.sub("|".join(STYLES), lambda found: f"var(--{STYLES[found[0]]})", svg)


def curves(runs: Mapping[str, Path]) -> Figure:
    """Returns the curves of a run, or of several in the same axes, for a page that has the names already.

    Args:
        runs: `events.jsonl` by the name of the run.
    """
    if len(runs) > 1:
        return compared_curves(runs)
    [events] = runs.values()
    figure = curves_of(events)
    figure.suptitle(" ")  # its space is for the caption
    return figure


def bars(rows: Sequence[Mapping[str, Any]], names: Sequence[str], rate: str) -> Figure:
    """Draws the error rates of groups in percent as bars, with their intervals.

    Args:
        rows: Rows of `systems.groups`; the first `MOST_BARS` are drawn.
        rate: `wer` or `cer`.
    """
    rows = rows[:MOST_BARS]
    height = 0.9 + (0.22 + 0.14 * len(names)) * len(rows)
    figure, axes = _begun(f"{rate.upper()} (%)", "", width=11.5, height=height)
    thickness = 0.8 / len(names)
    for number, name in enumerate(names):
        rates = [row["rates"][number] for row in rows]
        values = 100 * np.array([each[rate] or 0.0 for each in rates])
        bounds = [each[f"{rate}_interval"] or (each[rate] or 0.0,) * 2 for each in rates]
        around = np.abs(100 * np.array(bounds).T - values)
        places = np.arange(len(rows)) + thickness * (number - (len(names) - 1) / 2)
        axes.barh(
            places, values, 0.9 * thickness, xerr=around, label=name[:60], color=COLOURS[number], ecolor=INK,
            hatch=HATCHES[number], edgecolor="#ffffff", error_kw={"elinewidth": 1.2, "capsize": 2.5},
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [str(row["name"])[:40] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    if len(names) > 1:
        _add_legend(figure)
    return figure


def lengths(systems: Sequence[System]) -> Figure:
    """Draws the word error rate of each utterance against its duration, or against its words if that is unknown."""
    first = systems[0]
    sizes = np.array([each.duration_s for each in first.recognised], np.float64)
    has_durations = bool(np.isfinite(sizes).any())
    sizes = sizes if has_durations else first.words.astype(np.float64)
    figure, axes = _begun("duration (s)" if has_durations else "words of the reference", "WER of the utterance (%)")
    for number, each in enumerate(systems):
        axes.scatter(
            sizes, 100 * utterance_rates(each), s=16, alpha=0.5, color=COLOURS[number], marker=MARKERS[number],
            linewidths=0, label=each.name[:60], rasterized=len(sizes) > 500,
        )  # fmt: skip
        middles, rates = pooled(sizes, each)
        axes.plot(
            middles, 100 * rates, color=COLOURS[number], linewidth=2, marker=MARKERS[number], markersize=6,
            markeredgecolor=INK, label=f"{each.name[:50]}, tenths of the utterances",
        )  # fmt: skip
    axes.set_ylim(bottom=-2)
    _add_legend(figure)
    return figure


def pooled(sizes: Float[np.ndarray, " N"], system: System) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """Returns mean size and word error rate of tenths of the utterances, from the shortest to the longest.

    Utterances of unknown size are left out, and so are tenths without reference words.
    """
    order = np.argsort(sizes, kind="stable")
    parts = [part for part in np.array_split(order[np.isfinite(sizes[order])], 10) if system.words[part].sum()]
    rates = [system.errors[part].sum() / system.words[part].sum() for part in parts]
    return np.array([sizes[part].mean() for part in parts]), np.array(rates)


def reliabilities(reports: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draws the share of right words against the mean confidence for bins of confidence, and the numbers of words.

    Args:
        reports: Results of `systems.confidence` by the name of the system.
    """
    figure = Figure(figsize=(7, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    for axes in (upper, lower):
        _style(axes)
    upper.plot([0, 100], [0, 100], color=GREY, linewidth=1.2, linestyle="--", label="calibrated")
    for number, (name, report) in enumerate(reports.items()):
        words, confidences, right = report["bins"][report["bins"][:, 0] > 0].T
        label = f"{name[:60]}: calibration error {100 * report['calibration_error']:.1f} %"
        upper.plot(
            100 * confidences / words, 100 * right / words, color=COLOURS[number], linewidth=2, label=label,
            marker=MARKERS[number], markersize=6,
        )  # fmt: skip
        width = 100 / NUM_BINS / len(reports)
        edges = 100 / NUM_BINS * np.arange(NUM_BINS) + width * number
        lower.bar(
            edges, report["bins"][:, 0], 0.9 * width, align="edge", color=COLOURS[number], hatch=HATCHES[number],
            edgecolor="#ffffff",
        )  # fmt: skip
    upper.set_ylabel("right words (%)", color=INK)
    upper.set_ylim(-3, 103)
    _add_legend(figure)
    lower.set_ylabel("words", color=INK)
    lower.set_xlabel("confidence (%)", color=INK)
    lower.set_xlim(0, 100)
    return figure


def _begun(x_label: str, y_label: str, *, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _style(axes)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _add_legend(figure: Figure) -> None:
    """Adds a legend below the axes, where it covers no data. Each label has an entry, once."""
    axes = figure.axes[0]
    figure.legend(
        *axes.get_legend_handles_labels(), frameon=False, fontsize=9, labelcolor=INK, loc="outside lower left"
    )
