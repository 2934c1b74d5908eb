"""Pictures of the dashboard, and its keys.

`pytest --snapshot-update tests/watching/test_dashboard.py` accepts other pictures.
"""

import asyncio
from functools import partialmethod

import pytest

pytest.importorskip("textual_plot")
snapshots = pytest.importorskip("pytest_textual_snapshot")

from asr_jax.watching import dashboard as module  # noqa: E402
from asr_jax.watching.background import show_dashboard  # noqa: E402
from asr_jax.watching.chart import Chart  # noqa: E402
from asr_jax.watching.dashboard import Dashboard  # noqa: E402
from tests.watching.recorded_runs import extraction, failed, finished, training, write  # noqa: E402

SMALL, LARGE = (80, 24), (120, 40)
snapshots.SVGImageExtension.file_extension = "svg"  # the plugin has the name of this attribute in older syrupy
RUNS = {"running": training, "failed": failed, "finished": finished, "extraction": extraction}


@pytest.fixture(autouse=True)
def same_environment(monkeypatch):
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_ANIMATIONS", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def dashboard(folder, *runs, silent_s=5):
    """Dashboard of runs, at a fixed time after the last event."""
    now_ms = max(run[-1]["timestamp_ms"] for run in runs) + 1000 * silent_s
    paths = [write(folder / str(number) / "events.jsonl", run) for number, run in enumerate(runs)]
    return Dashboard(paths, [f"run {number}" for number in range(len(runs))], now_ms=lambda: now_ms)


async def read(pilot):
    """Waits until all events are shown."""
    await pilot.pause()
    for view in pilot.app.views:
        await asyncio.to_thread(view.reader.join)
    await pilot.pause()
    await pilot.pause()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(pytest.param(name, LARGE, id=f"{name}-large") for name in RUNS),
        pytest.param("running", SMALL, id="running-small"),
        *(pytest.param(name, SMALL, id=f"{name}-small", marks=pytest.mark.slow) for name in RUNS if name != "running"),
    ],
)
def test_one_run(name, size, tmp_path, snap_compare):
    assert snap_compare(dashboard(tmp_path, RUNS[name]()), terminal_size=size, run_before=read)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_two_runs(size, tmp_path, snap_compare):
    app = dashboard(tmp_path, training(until=900), failed())
    assert snap_compare(app, terminal_size=size, run_before=read)


def test_three_runs(tmp_path, snap_compare):
    app = dashboard(tmp_path, training(until=900), failed(), finished())
    assert snap_compare(app, terminal_size=LARGE, run_before=read)


def test_runs_outside_the_screen_are_numbered(tmp_path):
    app = dashboard(tmp_path, training("first"), failed("second"), finished("third"))

    async def look():
        async with app.run_test(size=SMALL) as pilot:
            await read(pilot)
            texts = [seen(app)]
            await pilot.press("n", "n")
            await pilot.pause(0.1)
            return [*texts, seen(app)]

    first, last = asyncio.run(look())
    assert "1 of 3  first" in first
    assert "2 of 3  second" in first
    assert "third" not in first
    assert "3 of 3  third" in last


def test_a_run_without_events_for_a_while(tmp_path, snap_compare):
    app = dashboard(tmp_path, training(until=100), silent_s=4000)
    assert snap_compare(app, terminal_size=SMALL, run_before=read)


def seen(app):
    """Texts of the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def pressed(app, *keys, size=SMALL):
    """Returns the texts of the screen before and after each key; empty if the dashboard has ended."""

    async def press():
        async with app.run_test(size=size, notifications=True) as pilot:
            await read(pilot)
            texts = [seen(app)]
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.1)
                texts.append(seen(app) if app.is_running else "")
        return texts

    return asyncio.run(press())


def test_keys_of_one_run(tmp_path):
    app = dashboard(tmp_path, training())
    first, curves, notes, samples, stays, ended = pressed(app, "c", "p", "p", "ctrl+c", "q")
    assert "─ loss ─" in first
    assert "learning rate ─" not in first
    assert "learning rate ─" in curves
    assert "Next run" not in first
    assert "the quick brown fox" in first
    assert "5 rejected" not in first
    assert "rejected utterances: 5" in notes
    assert "the quick brown fox" in samples
    assert "q leaves the dashboard" in stays
    assert ended == ""
    assert (tmp_path / "0" / "events.jsonl").exists()


def test_errors_have_marks_and_colours(tmp_path):
    app, styles = dashboard(tmp_path, training()), {}

    async def look():
        async with app.run_test(size=(120, 70)) as pilot:
            await read(pilot)
            for strip in app.screen._compositor.render_strips():
                styles.update({segment.text.strip(): segment.style for segment in strip})

    asyncio.run(look())
    assert len({styles[mark].color for mark in "SDI"}) == 3
    assert styles["crown"].color == styles["S"].color
    assert styles["crown"].bold
    assert styles["now"].color == styles["I"].color


def test_keys_of_several_runs(tmp_path):
    app = dashboard(tmp_path, training("first run"), failed("second run"))
    both, _, second, again = pressed(app, "n", "enter", "escape", size=(100, 24))
    for text in (both, again):
        assert "first run" in text
        assert "second run" in text
    assert "first run" not in second
    assert "second run" in second
    assert "All runs" in second


def test_events_that_come_later_are_shown(tmp_path):
    events = training()
    app = dashboard(tmp_path, events[:4])

    async def watch():
        async with app.run_test(size=SMALL) as pilot:
            await read(pilot)
            texts = [seen(app)]
            for change in (lambda path: write(path, events), lambda path: path.unlink()):
                change(tmp_path / "0" / "events.jsonl")
                app._poll()
                await read(pilot)
                texts.append(seen(app))
            return texts

    starting, shown, gone = asyncio.run(watch())
    assert "compiling 0 of 3 batch shapes" in starting
    assert "update 1,200/2,000" in shown
    assert "events: No such file or directory" in gone
    assert "update 1,200/2,000" in gone


def test_the_dashboard_ends_with_its_command(tmp_path):
    path = write(tmp_path / "events.jsonl", training(until=50))
    app = Dashboard([path], ["run"], is_over=lambda: True)

    async def wait():
        async with app.run_test() as pilot:
            await pilot.pause(0.1)
            return app.is_running

    assert not asyncio.run(wait())


def test_a_small_terminal_is_no_error(tmp_path):
    [text] = pressed(dashboard(tmp_path, training()), size=(30, 8))
    assert "zipformer" in text


@pytest.mark.parametrize(
    "place",
    [
        pytest.param((module, "state_of"), id="in the reader"),
        pytest.param((Chart, "render"), id="while it draws", marks=pytest.mark.slow),
    ],
)
def test_a_failure_ends_the_dashboard(tmp_path, monkeypatch, capfd, place):
    def fail(*given, **options):
        raise KeyError("epoch")

    monkeypatch.setattr(*place, fail)
    monkeypatch.setattr(Dashboard, "run", partialmethod(Dashboard.run, headless=True))
    path = write(tmp_path / "events.jsonl", training(until=50))
    assert show_dashboard([path], ["x"]) == 1
    shown = capfd.readouterr().err
    assert shown.startswith("error: the dashboard failed (KeyError: 'epoch'); ")
    assert shown.endswith("--plain prints plain lines of a run\n")
    assert shown.count("\n") == 1


def test_a_dashboard_that_ends_by_itself(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Dashboard, "run", partialmethod(Dashboard.run, headless=True))
    path = write(tmp_path / "events.jsonl", training(until=50))
    assert show_dashboard([path], ["x"], is_over=lambda: True) == 0
    assert capfd.readouterr().err == ""
