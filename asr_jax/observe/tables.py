"""Tables on the console. The units in the names of columns determine the format of numbers."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asr_jax.observe.transcripts import printable

Rows = Sequence[Mapping[str, Any]]
LOG_WIDTH = 10_000
"""Width of lines in a file, in characters. Nothing is wrapped, because files can be scrolled."""
SHORTEST_TEXT = 12
"""Width in characters below which texts in tables are not folded."""


def console_for(stream: Any = None) -> Console:
    """Returns a console for a text stream, by default standard output.

    A terminal has colours and cursor control, any other stream plain text.
    """
    stream = stream or sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    width = None if terminal else LOG_WIDTH
    return Console(
        file=stream,
        force_terminal=terminal,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        force_jupyter=False,
        legacy_windows=False,
    )


def say(console: Console, text: str, *, style: str = "") -> None:
    """Prints one line without markup and wrapping. `?` replaces characters that cannot be printed or encoded."""
    console.print(_shown(console, text, style=style), soft_wrap=True)


def print_table(rows: Rows, *, title: str = "", console: Console | None = None) -> None:
    """Prints a table with a column per key, in order of first appearance.

    In a terminal that is too narrow, headers are wrapped at spaces and long texts are folded, but no number. If this is
    not enough, each row is printed as pairs of names and values. In a file, nothing is wrapped.

    Args:
        rows: Values by the name of the column. Rows may lack columns.
        title: Line above the table. Empty: none.
        console: Console to print to. Default: standard output.
    """
    console = console or console_for()
    if title:
        say(console, title, style="bold")
    names = list(dict.fromkeys(name for row in rows for name in row))
    headers = [_shown(console, name.replace("_", " ")) for name in names]
    cells = [[_shown(console, _cell(name, row.get(name))) for name in names] for row in rows]
    are_texts = [any(isinstance(row.get(name), str) for row in rows) for name in names]
    natural = [max(each.cell_len for each in column) for column in zip(headers, *cells, strict=True)]
    room, padding = console.width, 1
    if sum(natural) + 3 * (len(names) - 1) > room:
        room, padding = room - (len(names) - 1), 0
        least = [
            min(widest, SHORTEST_TEXT)
            if is_text
            else max(*map(cell_len, header.plain.split()), *(c.cell_len for c in column))
            for is_text, widest, header, *column in zip(are_texts, natural, headers, *cells, strict=True)
        ]
        if sum(least) > room:
            for row in cells:
                pairs = [f"{header} {cell}" for header, cell in zip(headers, row, strict=True)]
                console.print(_shown(console, ", ".join(pairs)))
            return
        while sum(natural) > room:
            place = max((k for k in range(len(names)) if natural[k] > least[k]), key=natural.__getitem__)
            natural[place] -= 1
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, padding=(0, padding))
    for header, width, is_text in zip(headers, natural, are_texts, strict=True):
        table.add_column(header, justify="left" if is_text else "right", overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def markdown_table(rows: Rows) -> list[str]:
    """Returns the lines of a table in Markdown, with a column per key and numbers as in `print_table`."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(name, row.get(name)).replace("|", "\\|") for name in names] for row in rows]
    aligned = [":--" if any(isinstance(row.get(name), str) for row in rows) else "--:" for name in names]
    headers = [name.upper() if name in ("wer", "cer", "ter") else name.replace("_", " ") for name in names]
    return [f"| {' | '.join(line)} |" for line in (headers, aligned, *cells)]


def quantity(value: float | int, unit: str = "") -> str:
    """Returns a number with an SI prefix, such as `1.53 GB`."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}".rstrip()
        value /= 1000
    return f"{value:.4g} P{unit}"


def percent(share: float | int | None, *, digits: int = 2) -> str:
    """Returns a fraction in percent, such as `8.12 %`; `nan` if it is None (not finite)."""
    return "nan" if share is None else f"{100 * share:.{digits}f} %"


def validation_name(data: Mapping[str, Any]) -> str:
    """Returns the name of a validation with the kind of its parameters, such as `validation (ema)`."""
    return "validation" + (" (ema)" if data.get("weights") == "ema" else "")


def _shown(console: Console, text: str, *, style: str = "") -> Text:
    return Text(printable(text).encode(console.encoding, "replace").decode(console.encoding), style=style)


def _cell(name: str, value: Any) -> str:
    unit = name.rsplit("_", 1)[-1]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if unit in ("bytes", "flops"):
        return quantity(value, {"bytes": "B", "flops": "FLOP"}[unit])
    if unit in ("share", "wer", "cer", "ter") or name == "accuracy":
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
