"""Picture of a surveyed corpus: durations, speech rates, hours by speaker, and characters."""

from os import PathLike

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asr_jax.data.manifests.survey import Survey, durations, hours_by_speaker
from asr_jax.observe.durations import EDGE, FILL, GREY, INK

NUM_BINS, NUM_CHARACTERS, NUM_POINTS = 60, 40, 5000


def draw_survey(survey: Survey, png_path: str | PathLike[str], *, title: str, longest_s: float) -> None:
    """Draws a survey as a PNG.

    Args:
        longest_s: Longest utterance of training in seconds, which is marked.
    """
    figure = Figure(figsize=(10, 6), dpi=90, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, parse_math=False)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    sets = [each for each in survey.sets.values() if len(each)]
    seconds = durations(sets)
    # A few long recordings would make the bins of all others narrow.
    shown_s = min(float(seconds.max()), 2 * max(longest_s, float(np.percentile(seconds, 99))))
    for name, of_set in survey.sets.items():
        if len(of_set):
            of = durations([of_set])
            bins = np.linspace(0, shown_s, NUM_BINS).tolist()
            first.hist(
                np.minimum(of, shown_s), bins, weights=of / 3600, label=f"{name} {of_set.hours:.2f} h", alpha=0.8
            )
    first.axvline(longest_s, color=EDGE, linewidth=1)
    _label(first, "seconds (line: longest in training)", "hours")
    first.legend(frameon=False, fontsize=8)

    num_chars = np.concatenate([each.columns.num_chars[each.rows] for each in sets])
    some = np.unique(np.linspace(0, len(seconds) - 1, NUM_POINTS).astype(int))
    second.plot(seconds[some], num_chars[some], ".", color=FILL, markersize=3, alpha=0.5)
    for rate in survey.chars_per_s:
        second.plot([0, shown_s], [0, rate * shown_s], color=EDGE, linewidth=1)
    second.set_xlim(0, shown_s)
    second.set_ylim(0, 1.1 * float(num_chars.max()))
    _label(second, "seconds (beyond the lines: text of other audio?)", "characters")

    hours = [hours_by_speaker(each) for each in sets]
    if any(map(len, hours)):
        by_speaker = np.sort(np.concatenate(hours))[::-1]
        third.bar(np.arange(len(by_speaker)), by_speaker, width=1.0, color=FILL)
        _label(third, f"{len(by_speaker):,} speakers", "hours")
    else:
        third.text(0.5, 0.5, "speakers are not known", ha="center", color=GREY, transform=third.transAxes)
        third.set_axis_off()

    frequent = [(each, number) for each, number in survey.texts.characters.most_common() if not each.isspace()]
    frequent = frequent[:NUM_CHARACTERS]
    fourth.bar(np.arange(len(frequent)), [number for _, number in frequent], color=FILL)
    # The fonts of the picture lack letters of many scripts, which are then named by their code points.
    names = [each if ord(each) < 0x0530 or "–" <= each <= "…" else f"{ord(each):X}" for each, _ in frequent]
    are_codes = max(map(len, names)) > 1
    fourth.set_xticks(np.arange(len(frequent)), names, fontsize=6 if are_codes else 9, parse_math=False)
    fourth.tick_params(axis="x", rotation=90 * are_codes)
    fourth.set_yscale("log")
    _label(fourth, f"the most frequent of {len(survey.texts.characters):,} characters", "times")
    figure.savefig(png_path, format="png")


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
