"""Dashboard of runs in the terminal, from their events alone."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

from rich.progress_bar import ProgressBar
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Grid, Horizontal, HorizontalScroll, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Static

from asr_jax.watching import panels
from asr_jax.watching.chart import Chart
from asr_jax.watching.state import State, state_of
from asr_jax.watching.tail import Tail

POLL_S = 1.0
NUM_CHARTS = 6
PANELS = ("figures", "samples", "notes")


class Panel(VerticalScroll):
    """A text with a frame, which can be scrolled."""

    def __init__(self, title: str, name: str) -> None:
        super().__init__(classes=f"panel {name}")
        self.border_title = title
        self.text = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self.text


class RunView(Vertical):
    """Everything that is shown of one run."""

    def __init__(self, path: Path, name: str, *, now_ms: Callable[[], float]) -> None:
        super().__init__(classes="run")
        self.tail, self._label, self._now_ms = Tail(path), name, now_ms
        self.state = State(name=name)
        self.reader = Thread()
        """Thread of the last look at the events."""
        self.number = ""
        """Number of the run among several runs, such as `1 of 3`."""
        self._chosen = 0
        """Number of the first chart that a small terminal shows."""
        self._panel = "samples"
        """Panel that a small terminal shows, for a single run beside the figures."""
        self._head, self._bar = Static(classes="head", markup=False), Static(classes="bar")
        self._charts = [Chart(classes="chart") for _ in range(NUM_CHARTS)]
        self._panels = {
            "figures": Panel("figures", "figures"),
            "samples": Panel("samples", "samples"),
            "notes": Panel("warnings, rejected", "notes"),
        }

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._bar
        with Grid(classes="charts"):
            yield from self._charts
        with Horizontal(classes="panels"):
            yield from self._panels.values()

    def on_mount(self) -> None:
        self._choose()
        self.redraw()

    def on_resize(self, event: Resize) -> None:
        self._write()  # transcripts fit the width

    def poll(self) -> None:
        """Starts to read further events, unless the last look has not ended: a remote folder may be slow, or hang.

        Python waits at its exit for the threads of Textual's workers, but not for a daemon.
        """
        if not self.reader.is_alive():
            self.reader = Thread(target=self._read, daemon=True)
            self.reader.start()

    def _read(self) -> None:
        try:
            if not self.tail.read():
                return
            self.state = state_of(self.tail.events, name=self._label)
        except Exception as error:
            self._call(partial(self.app.exit, return_code=1, message=f"{type(error).__name__}: {error}"))
        else:
            self._call(self.redraw)

    def _call(self, function: Callable[[], None]) -> None:
        """Calls a function in the thread of the interface."""
        with suppress(RuntimeError):  # the dashboard was closed meanwhile
            self.app.call_from_thread(function)

    def redraw(self) -> None:
        """Shows the present state."""
        curves = self.state.curves
        for number, chart in enumerate(self._charts):
            chart.draw(curves[number] if number < len(curves) else None)
        # Textual's own bar has animations, with which pictures differ.
        self._bar.update(ProgressBar(self.state.total or 1, self.state.done, complete_style=panels.BLUE))
        self._choose()
        self._write()

    def tick(self) -> None:
        """Shows for how long there was no event."""
        self._head.update(panels.head(self.state, number=self.number, problem=self.tail.problem, now_ms=self._now_ms()))

    def next_chart(self) -> None:
        """Shows the next chart first."""
        self._chosen = (self._chosen + 1) % max(len(self.state.curves), 1)
        self._choose()

    def show_panel(self, name: str) -> None:
        """Shows a panel instead of another one."""
        self._panel = name
        self._choose()

    def _choose(self) -> None:
        num = len(self.state.curves) or NUM_CHARTS
        for number, chart in enumerate(self._charts):
            chart.set_class(number == self._chosen % num, "chosen")
            chart.set_class(number == (self._chosen + 1) % num, "second")
            chart.set_class(number >= num, "unused")
        for name, panel in self._panels.items():
            panel.set_class(name == self._panel, "chosen")

    def _write(self) -> None:
        self.tick()
        shown, width = self.state, self._panels["samples"].scrollable_content_region.width
        self._panels["figures"].text.update(panels.figures(shown.figures))
        self._panels["samples"].border_subtitle = panels.KEY if shown.samples else ""
        self._panels["samples"].text.update(panels.samples(shown.samples_title, shown.samples, width=max(width, 20)))
        self._panels["notes"].text.update(panels.notes(shown, damage=self.tail.damage))


class RunsScreen(Screen[None]):
    """Screen whose footer names the key that selects a panel to scroll."""

    BINDINGS = [Binding("tab", "app.focus_next", "Scroll")]  # noqa: RUF012


class Dashboard(App[None]):
    """Shows one run, or several side by side, until the user quits. The runs do not notice it.

    Args:
        paths: Files of events, which need not exist yet.
        names: Titles of the runs, which are shown until their events have one.
        is_over: Function that returns whether the dashboard ends by itself, since its run has ended.
        now_ms: Function that returns the Unix time in milliseconds.
    """

    TITLE = "asr_jax"
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012  Textual's attributes
    VERTICAL_BREAKPOINTS = [(0, "-short"), (40, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("q", "quit", "Quit (runs go on)"),
        Binding("c", "next_chart", "Curve"),
        Binding("p", "next_panel", "Panel"),
        Binding("n", "next_run", "Next run"),
        Binding("enter", "one_run", "One run"),
        Binding("escape", "all_runs", "All runs"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]
    CSS = """
    .runs { height: 1fr; }
    .run { height: 1fr; min-width: 39; }
    .several .run { border-left: wide $panel; }
    .several .run.current { border-left: wide $accent; }
    .head { height: 2; text-wrap: nowrap; text-overflow: ellipsis; }
    .bar { height: 1; }
    .charts { grid-size: 2; grid-gutter: 0 1; height: 11; }
    .chart { display: none; border: round $panel-lighten-2; border-title-color: $text; }
    .chart > .plot--axis { color: $panel-lighten-3; }
    .chart > .plot--tick { color: $text-muted; text-style: none; }
    .chart.chosen, .chart.second, .-tall .single .chart { display: block; }
    .chart.unused, .-short .several .second { display: none; }
    .panels { height: 1fr; }
    .panel {
        display: none; width: 1fr; height: 1fr; border: round $panel-lighten-2; border-title-color: $text;
        border-subtitle-color: $text-muted; scrollbar-size-vertical: 1;
    }
    .panel:focus { border: round $accent; }
    .panel.chosen, .single .figures, .-wide .single .panel, .-tall .several .panel { display: block; }
    .-tall .single .charts { height: 60%; }
    .-wide.-tall .single .charts { grid-size: 3; }
    .several .charts { grid-size: 1; }
    .-tall .several .charts { height: 22; }
    .several .panels { layout: vertical; }
    """

    def __init__(
        self,
        paths: Sequence[Path],
        names: Sequence[str],
        *,
        is_over: Callable[[], bool] = lambda: False,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        super().__init__()
        self.views = [RunView(path, name, now_ms=now_ms) for path, name in zip(paths, names, strict=True)]
        self._is_over, self._current, self._is_one = is_over, 0, len(paths) == 1
        self._panel = 0

    def get_default_screen(self) -> Screen[None]:
        return RunsScreen(id="_default")

    def compose(self) -> ComposeResult:
        with HorizontalScroll(classes="runs", can_focus=False):
            yield from self.views
        yield Footer()

    def on_mount(self) -> None:
        self._show_runs()
        self.call_after_refresh(self._poll)  # texts that are set before the first layout may not be drawn
        self.set_interval(POLL_S, self._poll)

    def _poll(self) -> None:
        if self._is_over():
            self.exit()
            return
        for view in self.views:
            view.tick()
            view.poll()

    def _show_runs(self) -> None:
        runs = self.query_one(".runs")
        runs.set_class(not self._is_one, "several")
        runs.set_class(self._is_one, "single")
        num = len(self.views)
        for number, view in enumerate(self.views):
            view.set_class(number == self._current, "current")
            view.display = not self._is_one or number == self._current
            view.styles.width = "100%" if self._is_one else f"{100 / num}%"
            view.number = f"{number + 1} of {num}" if num > 1 else ""
            view.tick()
        self._show_panel()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides keys that do nothing."""
        if action == "next_run":
            return len(self.views) > 1
        if action == "one_run":
            return not self._is_one
        if action == "all_runs":
            return self._is_one and len(self.views) > 1
        return True

    def action_next_chart(self) -> None:
        for view in self.views:
            view.next_chart()

    def action_next_panel(self) -> None:
        self._panel += 1
        self._show_panel()

    def _show_panel(self) -> None:
        names = PANELS[1:] if self._is_one else PANELS  # a single run always has its figures
        for view in self.views:
            view.show_panel(names[self._panel % len(names)])

    def action_next_run(self) -> None:
        self._current = (self._current + 1) % len(self.views)
        self._show_runs()
        self.views[self._current].scroll_visible()

    def action_one_run(self) -> None:
        self._is_one = True
        self._show_runs()

    def action_all_runs(self) -> None:
        self._is_one = False
        self._show_runs()

    def action_interrupt(self) -> None:
        self.notify("q leaves the dashboard, and the run goes on; Ctrl-C does nothing here")
