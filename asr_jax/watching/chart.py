"""A picture with lines in the terminal."""

from collections.abc import Sequence
from itertools import count, pairwise
from math import ceil, floor
from typing import Any

import numpy as np
from textual.content import Content
from textual.reactive import reactive
from textual_hires_canvas import HiResMode
from textual_plot import NumericAxisFormatter, PlotWidget

from asr_jax.observe.transcripts import printable
from asr_jax.watching.state import Curve, Line

COLOURS = ("#4f9dde", "#e0804f", "#57b37f", "#b08ad6", "#d0a93c", "#7fa6b3")
MOST_POINTS = 300
"""Largest number of points of a line. A terminal has about two for each column."""
WIDE_RANGE = 20
"""Ratio of the largest to the smallest value from which a scale is logarithmic."""
LABEL_CELLS = 8
"""Width of the labels at the left in cells, with a space."""
LEAST_MARGIN = 1e-6
"""Smallest distance of the values from the border of the picture, relative to the largest value. Rounding errors would
otherwise fill the picture."""


class Chart(PlotWidget, can_focus=False):
    """Draws a curve; several lines have different colours, and their names are below the picture."""

    margin_top = reactive(0)
    margin_bottom = reactive(1)
    margin_left = reactive(LABEL_CELLS)

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_pan_and_zoom=False, **options)
        self.set_x_formatter(_Whole(self))

    def draw(self, curve: Curve | None) -> None:
        """Draws a curve instead of the one before; None: nothing is drawn."""
        self.clear()
        self.border_title = curve.title if curve else ""
        lines = {name: _thinned(line) for name, line in curve.lines.items()} if curve else {}
        values = np.concatenate([y for _, y in lines.values()] or [np.zeros(0)])
        values = values[np.isfinite(values)]
        if not len(values) or curve is None:
            self.border_subtitle = "no values yet"
            self.set_xlimits(0, 1)
            self.set_ylimits(0, 1)
            return
        is_log = curve.may_be_logarithmic and 0 < WIDE_RANGE * values.min() < values.max()
        self.set_y_formatter(_Powers(self) if is_log else _Numbers(self))
        last = max(float(x.max()) for x, _ in lines.values()) or 1.0
        # Where lines meet, the one with the fewest points is above the others, and then the first one.
        drawn = reversed(list(zip(COLOURS, lines.items(), strict=False)))
        for colour, (_, (x, y)) in sorted(drawn, key=lambda each: -len(each[1][1][0])):
            shown = np.log10(y) if is_log else y
            if len(x) == 1:  # a short line, since a single dot can hardly be seen
                x, shown = x[0] + np.array([-0.02, 0.02]) * last, np.repeat(shown, 2)
            self.plot(x, shown, line_style=colour, hires_mode=HiResMode.BRAILLE)
        names = [(f"━ {printable(name)} ", colour) for colour, name in zip(COLOURS, lines, strict=False)]
        self.border_subtitle = Content.assemble(*names) if len(lines) > 1 else ""
        low, high = (np.log10(values.min()), np.log10(values.max())) if is_log else (values.min(), values.max())
        least = LEAST_MARGIN * max(abs(low), abs(high))
        margin = max(0.05 * (high - low), least) if high > low else 0.5 * abs(high) or 1.0
        self.set_xlimits(0, 1.1 * last)
        self.set_ylimits(float(low - margin), float(high + margin))


def _thinned(line: Line) -> Line:
    """Returns the means of consecutive points, of which there are at most `MOST_POINTS`."""
    num = ceil(len(line[0]) / MOST_POINTS)
    if num <= 1:
        return line
    starts = np.arange(0, len(line[0]), num)
    counts = np.diff([*starts, len(line[0])])
    x, y = (np.add.reduceat(values, starts) / counts for values in line)
    return x, y


class _Formatter(NumericAxisFormatter):
    """Formatter of an axis, which is asked for labels whenever the picture is drawn."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart


class _Whole(_Formatter):
    """Whole numbers below the picture, such as updates."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return [tick for tick in super().get_ticks(min_, max_, 4) if tick == round(tick)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        labels, places = [f"{tick:,.0f}" for tick in ticks], []
        for tick, label in zip(ticks, labels, strict=True):
            place = self._chart.get_pixel_from_coordinate(tick, 0.0)[0]
            first = LABEL_CELLS + place - (len(label) - 1) // 2
            places.append((first, first + len(label)))
        width = self._chart.size.width
        shown = spaced(labels, places)
        return [label if last <= width else "" for label, (_, last) in zip(shown, places, strict=True)]


class _Numbers(_Formatter):
    """Numbers that fit beside the picture."""

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        return self._beside(ticks, ticks)

    def _beside(self, ticks: Sequence[float], values: Sequence[float]) -> list[str]:
        """Returns the labels of ticks with these values, of which a row of the terminal has one."""
        rows = [self._chart.get_pixel_from_coordinate(0.0, tick)[1] for tick in ticks]
        return spaced([short(value) for value in values], [(-row, -row) for row in rows])


class _Powers(_Numbers):
    """Logarithms, whose labels are the numbers: 1, 2 and 5 times the powers of ten."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        factors = (1, 2, 5) if max_ - min_ < 3 else (1,)
        powers = range(floor(min_), ceil(max_) + 1)
        ticks = [power + float(np.log10(factor)) for power in powers for factor in factors]
        return [tick for tick in ticks if min_ <= tick <= max_]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        return self._beside(ticks, [10**tick for tick in ticks])


def spaced(labels: Sequence[str], places: Sequence[tuple[int, int]]) -> list[str]:
    """Returns all labels, or every second one, every third one and so on, so that neighbours do not meet.

    Args:
        labels: Labels of an axis in ascending order.
        places: First cell of each label, and the cell behind its last one. A neighbour must begin behind that cell.

    Returns:
        The labels. Those that are left out are empty.
    """
    step = next(step for step in count(1) if all(a[1] < b[0] for a, b in pairwise(places[::step])))
    return [label if number % step == 0 else "" for number, label in enumerate(labels)]


def short(value: float) -> str:
    """Returns a number in fewer than `LABEL_CELLS` characters; an empty text if it needs more."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    forms = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}", f"{float(mantissa):g}e{int(exponent)}"
    return next((form for form in forms if len(form) < LABEL_CELLS), "")
