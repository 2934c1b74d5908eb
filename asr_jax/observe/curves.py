"""Draws the curves of a run: loss, error rates or accuracy, learning rate, throughput and padding by update.

`python -m asr_jax.observe.curves RUN_DIR [--out PNG]`
"""

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from tyro.conf import Positional, arg

from asr_jax.core.names import counted
from asr_jax.core.options import parse, run_report
from asr_jax.core.settings import command_options
from asr_jax.metrics.measure import NAMES, deciding, deciding_text
from asr_jax.observe.events import FILE_NAME, Event, read_events
from asr_jax.observe.timeline import best_of, lines_of, of_used_weights, series, timeline

INK, GREY, FAINT = "#333333", "#666666", "#d9d9d9"
COLOURS = ("#2a6fbb", "#d1603d", "#3a8f5c", "#8458a8", "#b08a1e", "#5b7683")


def draw_curves(events_path: str | PathLike[str], png_path: str | PathLike[str]) -> None:
    """Draws the curves of a run as a PNG, as `curves_of`.

    Raises:
        UserError: If the events cannot be read.
    """
    figure = curves_of(events_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font may lack characters of the run's name
        figure.savefig(png_path, format="png")


def curves_of(events_path: str | PathLike[str]) -> Figure:
    """Returns a figure with the curves of a run.

    Panels without events have a note. Of updates that were repeated after a resume, only the last ones are drawn.

    Raises:
        UserError: If the events cannot be read.
    """
    events = list(read_events(events_path))
    by_name = timeline(events)
    steps, validations = by_name.get("train_step", []), by_name.get("validation", [])
    starts = [event["data"] for event in events if event["event"] == "run_start"]
    run = str((starts[-1].get("run") if starts else None) or Path(events_path).absolute().parent.name)
    figure = Figure(figsize=(12, 7.5), dpi=130, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12))
    figure.suptitle(run[:60], x=0.013, ha="left", fontsize=14, fontweight="bold", color=INK, parse_math=False)
    figure.text(0.987, 0.982, _caption(steps, validations), ha="right", va="top", color=GREY, fontsize=10)
    (loss, errors), (rate, speed) = figure.subplots(2, 2)
    _draw_loss(loss, steps, validations)
    if any("wer" in event["data"] for event in validations):
        _draw_errors(errors, validations)
    else:
        _draw_accuracy(errors, steps, validations)
    _draw_learning_rate(rate, steps)
    _draw_speed(speed, steps)
    last = max((event["data"]["update"] for event in [*steps, *validations]), default=1)
    for axes in (loss, errors, rate, speed):
        axes.set_xlim(0, 1.02 * max(last, 1))
    return figure


def compared_curves(runs: Mapping[str, Path]) -> Figure:
    """Returns a figure with the curves of several runs in the same axes, a colour for each run.

    Validations are those of the parameters and the sets that choose the best checkpoint. Panels without points in all
    runs are left out.

    Args:
        runs: `events.jsonl` by the name of the run.

    Raises:
        UserError: If the events cannot be read.
    """
    found = [_points(path) for path in runs.values()]
    titles = [title for title in found[0] if any(len(of_run[title][0]) for of_run in found)] or ["Training loss"]
    rows, last = (
        (len(titles) + 1) // 2,
        max((max(at) for each in found for at, _ in each.values() if len(at)), default=1),
    )
    figure = Figure(figsize=(12, 0.6 + 3.4 * rows), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12))
    for number, title in enumerate(titles):
        axes, values = figure.add_subplot(rows, 2, number + 1), np.concatenate([each[title][1] for each in found])
        event = "validation" if title.startswith("Validation") else "train_step"
        if not _begin(axes, title, values, event):
            continue
        for place, (name, of_run) in enumerate(zip(runs, found, strict=True)):
            marker = "o" if event == "validation" else _marker(of_run[title][0])
            line = ("-", "--")[place % 2]
            axes.plot(*of_run[title], color=COLOURS[place], ls=line, lw=2, marker=marker, ms=3.5, label=name[:60])
        if event == "validation" or title == "Training loss":
            _set_log_scale(axes, values)
        axes.set_xlim(0, 1.02 * max(last, 1))
        axes.legend(frameon=False, loc="best", fontsize=9, handlelength=3.5)
    return figure


def _points(events_path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns updates and values of a run by the title of their panel."""
    by_name = timeline(read_events(events_path))
    steps, used = by_name.get("train_step", []), of_used_weights(by_name.get("validation", []))
    figures: list[Event] = [
        {**each, "data": {**deciding(each["data"]), "update": each["data"]["update"]}} for each in used
    ]
    updates, losses = series(steps, "losses", "total")
    found = {"Training loss": (updates, smooth(losses, num_points=max(5, len(losses) // 30) | 1))}
    for measure, name in NAMES.items():
        at, values = series(figures, measure)
        is_rate = measure != "loss"
        found[f"Validation {name}{' (%)' if is_rate else ''}"] = (at, 100 * values if is_rate else values)
    found["Learning rate"] = series(steps, "learning_rate")
    found["Throughput (audio-s/s)"] = series(steps, "throughput", "audio_s_per_s")
    at, shares = series(steps, "throughput", "padding_share")
    return found | {"Padding (%)": (at, 100 * shares)}


def smooth(values: np.ndarray, *, num_points: int) -> np.ndarray:
    """Returns the moving average of values [N], with a window of an odd number of points.

    Near the ends, the window shrinks to a quarter. A steep start therefore keeps its shape, and the last points are
    still averages.
    """
    last, full = len(values) - 1, num_points // 2
    reaches = [min(full, max(num_points // 8, min(i, last - i))) for i in range(len(values))]
    return np.array([values[max(i - reach, 0) : i + reach + 1].mean() for i, reach in enumerate(reaches)])


def _draw_loss(axes: Axes, steps: Sequence[Event], validations: Sequence[Event]) -> None:
    updates, losses = series(steps, "losses", "total")
    if not _begin(axes, "Loss", updates, "train_step"):
        return
    values = np.zeros(0)
    lines = lines_of(of_used_weights(validations))
    for index, (name, events) in enumerate(lines.items(), start=1):
        validated, of_line = series(events, "loss")
        if len(of_line):
            label = f"validation {name}" if len(lines) > 1 else "validation"
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(validated, of_line, color=colour, linewidth=2, marker="o", markersize=3.5, label=label)
            values = np.append(values, of_line)
    num_points = max(5, len(losses) // 30) | 1
    axes.plot(updates, losses, color=COLOURS[0], alpha=0.3, linewidth=1, marker=_marker(updates), label="events")
    mean = smooth(losses, num_points=num_points)
    axes.plot(updates, mean, color=COLOURS[0], linewidth=2, label=f"mean of {num_points} events")
    _set_log_scale(axes, np.append(losses, values))
    axes.legend(frameon=False, loc="upper right", fontsize=9)


def _draw_errors(axes: Axes, validations: Sequence[Event]) -> None:
    percents, lines = np.zeros(0), lines_of(validations)
    for index, (name, events) in enumerate(lines.items()):
        for key, line in (("wer", "-"), ("cer", ":")):
            updates, shares = series(events, key)
            label = f"{key.upper()} {name}" if len(lines) > 1 else key.upper()
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(updates, 100 * shares, label=label, color=colour, ls=line, lw=2, marker="o", ms=3.5)
            percents = np.append(percents, 100 * shares)
    if _begin(axes, "Validation errors (%)", percents, "validation"):
        axes.set_ylim(0, min(1.15 * max(np.max(percents), 1.0), 105))
        _set_log_scale(axes, percents)
        axes.legend(frameon=False, loc="upper right", fontsize=9)


def _draw_accuracy(axes: Axes, steps: Sequence[Event], validations: Sequence[Event]) -> None:
    """Draws the accuracy of pre-training: the fraction of frames whose true target is the most similar one."""
    percents = np.zeros(0)
    for index, (name, events) in enumerate((("training", steps), ("validation", of_used_weights(validations)))):
        metrics = {metric for event in events for metric in event["data"].get("metrics", {})}
        for metric in sorted(metric for metric in metrics if metric.endswith("/accuracy")):
            updates, shares = series(events, "metrics", metric)
            marker = "o" if name == "validation" else _marker(updates)
            axes.plot(updates, 100 * shares, label=name, color=COLOURS[index], lw=2, marker=marker, ms=3.5)
            percents = np.append(percents, 100 * shares)
    title = "Contrastive accuracy (%)" if len(percents) else "Validation"
    if _begin(axes, title, percents, "validation"):
        axes.set_ylim(0, min(1.15 * max(np.max(percents), 1.0), 105))
        axes.legend(frameon=False, loc="upper left", fontsize=9)


def _set_log_scale(axes: Axes, values: np.ndarray) -> None:
    """Sets a logarithmic y-axis, with ticks at 1, 2, 5, if positive values span more than a factor of 20."""
    low, high = np.min(values), np.max(values)
    if not 0 < 20 * low < high:
        return
    axes.set_yscale("log")
    axes.set_ylim(0.8 * low, 1.3 * high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_learning_rate(axes: Axes, steps: Sequence[Event]) -> None:
    updates, rates = series(steps, "learning_rate")
    if _begin(axes, "Learning rate", updates, "train_step"):
        axes.plot(updates, rates, color=COLOURS[2], linewidth=2, marker=_marker(updates), label="learning rate")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_speed(axes: Axes, steps: Sequence[Event]) -> None:
    updates, speeds = series(steps, "throughput", "audio_s_per_s")
    if not _begin(axes, "Throughput (audio-s/s) and padding (%)", updates, "train_step"):
        return
    padded, shares = series(steps, "throughput", "padding_share")
    marker = _marker(updates)
    (left,) = axes.plot(updates, speeds, color=COLOURS[3], linewidth=1.4, marker=marker, label="audio-s/s")
    other = axes.twinx()
    (right,) = other.plot(padded, 100 * shares, color=COLOURS[4], linewidth=1.4, marker=marker, label="padding")
    axes.set_ylim(0, 1.25 * max(np.max(speeds), 1e-9))
    other.set_ylim(0, max(10.0, 2.5 * 100 * np.max(shares, initial=0.0)))
    other.tick_params(colors=COLOURS[4], labelsize=9, length=0)
    axes.tick_params(axis="y", colors=COLOURS[3])
    other.spines[:].set_visible(False)
    axes.legend(handles=[left, right], frameon=False, loc="upper right", ncols=2, fontsize=9)


def _begin(axes: Axes, title: str, points: np.ndarray, event: str) -> bool:
    """Draws title and grid of a panel. Without points, writes a note into the panel and returns False."""
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=GREY, labelsize=9, length=0)
    if not len(points):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, f"no {event} events yet", transform=axes.transAxes, ha="center", color="#999999")
        return False
    axes.grid(color=FAINT, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("update", color=GREY, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return True


def _marker(points: np.ndarray) -> str:
    return "o" if len(points) < 2 else ""


def _caption(steps: Sequence[Event], validations: Sequence[Event]) -> str:
    parts = [counted(steps[-1]["data"]["update"], "update")] if steps else []
    if steps and "epoch" in steps[-1]["data"]:
        parts.append(f"epoch {steps[-1]['data']['epoch']:,}")
    if best := best_of(validations):
        parts.append(f"best {deciding_text(best['data'])} at update {best['data']['update']:,}")
    return "  ·  ".join(parts)


@command_options
class CurvesOptions:
    """Options of `asr_jax.observe.curves`."""

    run_dir: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run, which contains events.jsonl."""
    out: Path | None = None
    """Picture to write. Default: RUN/curves.png."""


def main(arguments: Sequence[str]) -> None:
    options = parse(CurvesOptions, arguments, prog="python -m asr_jax.observe.curves", about=__doc__)
    out = options.out or options.run_dir / "curves.png"
    draw_curves(options.run_dir / FILE_NAME, out)
    print(out)


if __name__ == "__main__":
    run_report(main)
