"""Texts of the dashboard."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from asr_jax.observe.progress import clock
from asr_jax.observe.tables import percent
from asr_jax.observe.transcripts import aligned_groups, printable
from asr_jax.watching.state import Sample, State

YELLOW, RED, BLUE = "#e0b040", "#ff6a6a", "#5cb8ff"
MARKED = {"S": f"bold {YELLOW}", "D": f"bold {RED}", "I": f"bold {BLUE}", "": ""}
"""Styles of words with errors. The line of marks below has the same without colours."""
KEY = "S sub  D del  I ins"
SYMBOLS = {"complete": ("✔", "bold #5fc27e"), "stopped": ("■", f"bold {YELLOW}"), "FAILED": ("✖", f"bold {RED}")}
SILENT_S = 120.0
"""Seconds without an event after which a run that has not ended is marked."""


def head(state: State, *, number: str, problem: str, now_ms: float) -> Text:
    """Returns two lines: what the run does, and how far it is.

    Args:
        number: Number of the run, such as `1 of 3`; empty if there is one.
        problem: Reason why the events cannot be read.
        now_ms: Unix time in milliseconds.
    """
    symbol, style = SYMBOLS.get(state.doing, ("●", f"bold {BLUE}"))
    text = Text.assemble((f"{number}  " if number else "", "dim"), (printable(state.name), "bold"), "  ")
    if state.doing:
        text.append(f"{symbol} {state.doing}", style)
    detail = f" {state.detail}" if state.doing == "compiling" else f": {state.detail}"
    text.append(printable(detail) if state.detail else "")
    silent_s = (now_ms - state.timestamp_ms) / 1000
    if problem:
        text.append(f"  events: {problem}", f"bold {YELLOW}")
    elif not state.doing:
        text.append("no event yet", "dim")
    elif not state.is_over and silent_s > SILENT_S:
        text.append(f"  no event for {clock(silent_s)}", f"bold {YELLOW}")
    left = f", remaining {state.left}" if state.left else ""
    share = f", {percent(state.done / state.total, digits=0)}" if state.total else ""
    return text.append(f"\n{state.place}{left}{share}")


def figures(named: Mapping[str, str]) -> Table | Text:
    """Returns a row for each figure."""
    if not named:
        return Text("no figures yet", "dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, value in named.items():
        table.add_row(Text(name, "dim"), Text(printable(value)))
    return table


def samples(title: str, given: Sequence[Sample], *, width: int) -> Text:
    """Returns the transcripts with their references; errors have a colour and a mark.

    Args:
        title: Lines above them. Empty: there are no samples.
        width: Width of a line in cells.
    """
    if not title:
        return Text("none yet", "dim")
    text = Text("\n").join(Text(printable(line)) for line in title.split("\n")).append("\n")
    for sample in given:
        text.append(f"\n{printable(sample.id)}\n", "dim")
        for pairs in aligned_groups(sample.reference, sample.hypothesis, width=width):
            rows = [Text().append(name, "dim") for name in ("ref ", "hyp ", "    ")]
            for pair in pairs:
                for row, cell in zip(rows, pair.cells(), strict=True):
                    row.append(" ").append(cell, MARKED[pair.mark])
            has_errors = any(pair.mark for pair in pairs)
            text.append(Text("\n").join(rows if has_errors else rows[:2])).append("\n")
    return text


def notes(state: State, *, damage: str) -> Text:
    """Returns warnings and the numbers of rejected utterances.

    Args:
        damage: Lines of the file that are left out, as text; empty if there are none.
    """
    lines = []
    if damage:
        lines.append(Text(f"! {damage}", YELLOW))
    if state.rejected:
        lines.append(Text(f"rejected utterances: {sum(state.rejected.values()):,}", "bold"))
        lines += [Text(f"  {count:,} {printable(reason)}") for reason, count in state.rejected.items()]
    if state.warnings:
        lines.append(Text(f"warnings: {len(state.warnings):,}, the last one first", "bold"))
        lines += [Text(f"! {printable(line)}", YELLOW) for line in state.warnings]
    return Text("\n").join(lines) if lines else Text("no warnings, no rejected utterances", "dim")
