"""Labels of the axes of a picture in the terminal."""

import asyncio
import re

import numpy as np
import pytest

pytest.importorskip("textual_plot")

from textual.app import App

from asr_jax.watching.chart import Chart, short, spaced
from asr_jax.watching.state import Curve


class OneChart(App[None]):
    """A picture of the size that it has in a terminal of 80 × 24 cells."""

    CSS = "Chart { width: 39; height: 11; border: round white; }"

    def compose(self):
        yield Chart()


def drawn(*curves):
    """Returns the rows inside the frame of each picture, with the updates below them."""

    async def draw():
        app, found = OneChart(), []
        async with app.run_test(size=(80, 24)) as pilot:
            for updates, values in curves:
                app.query_one(Chart).draw(Curve("loss", {"a": (np.array(updates), np.array(values))}, True))
                await pilot.pause()
                rows = [strip.text[1:38] for strip in app.screen._compositor.render_strips()]
                found.append(rows[1:10])
        return found

    return asyncio.run(draw())


def test_labels_do_not_meet():
    short_run, several, at_the_border, decades, narrow = drawn(
        ([1.0, 8_000], [3.0, 4.0]),
        ([1.0, 40_000], [3.0, 4.0]),
        ([1.0, 4_000_000], [3.0, 4.0]),
        ([1.0, 10], [1.0, 400]),
        ([1.0, 10], [1.1e-4, 1.2e-4]),
    )
    assert re.findall(r"\S+", short_run[-1]) == ["0", "2,000", "4,000", "6,000", "8,000"]
    assert re.findall(r"\S+", several[-1]) == ["0", "20,000", "40,000"]
    assert several[-2].count("┳") == 4  # labels are left out, not their ticks
    assert re.findall(r"\S+", at_the_border[-1]) == ["0", "2,000,000"]  # 4,000,000 would be cut
    beside = [row[:7].strip() for row in decades[:-1]]
    assert [label for label in beside if label] == ["500", "100", "20", "5", "1"]  # of 1, 2, 5, 10, …
    assert [row[:7].strip() for row in narrow[1:7]] == [
        "0.00012",
        "1.18e-4",
        "1.16e-4",
        "1.14e-4",
        "1.12e-4",
        "0.00011",
    ]


def test_neighbours_have_a_space_between_them():
    labels, places = ["0", "10", "20", "30"], [(0, 1), (2, 4), (4, 6), (7, 9)]
    assert spaced(labels, places) == ["0", "", "20", ""]
    assert spaced(labels[:2], places[:2]) == ["0", "10"]
    assert spaced(labels[:2], [(0, 1), (1, 3)]) == ["0", ""]
    assert spaced([], []) == []


@pytest.mark.parametrize(
    ("value", "label"),
    [(0.25, "0.25"), (12_345, "12,345"), (1.234e7, "1.23e7"), (-0.000115, ""), (0.000115, "1.15e-4")],
)
def test_numbers_fit_beside_the_picture(value, label):
    assert short(value) == label
