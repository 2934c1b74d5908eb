"""Markdown that the generated pages consist of."""

import inspect
import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def code(value: Any) -> str:
    return f"`{value}`"


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    lines = [header.split(" | "), ["---"] * (header.count(" | ") + 1)]
    lines += [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms, each with a text, in MyST."""
    return "\n\n".join(f"{term}\n: {text.replace('\n', ' ') or '…'}" for term, text in pairs)


def toctree(names: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", *names, "```"])


def markdown(text: str) -> str:
    """A docstring in Markdown: indented lines are code, and characters other than backticks stand for themselves."""
    found = []
    lines = inspect.cleandoc(text).split("\n")
    for is_code, group in itertools.groupby(lines, key=lambda line: bool(re.match(r"  +(?!- )\S", line))):
        part = "\n".join(group)
        is_list = found and found[-1].rpartition("\n")[2].startswith("- ")
        found.append(f"\n```\n{textwrap.dedent(part)}\n```\n" if is_code and not is_list else escaped(part))
    return "\n".join(found)


def escaped(text: str) -> str:
    """Text in which only backticks have a meaning, and pages that it names are links."""
    pieces = re.split(r"(`[^`]+`)", text)
    plain = [re.sub(r"([<>*$\[\]{}\\]|(?<!\w)_|_(?!\w))", r"\\\1", each) for each in pieces[::2]]
    plain = [re.sub(r"docs/([\w-]+)\.md", r"[\1](/\1.md)", each) for each in plain]
    pieces[::2] = [re.sub(r"(?<=\(documentation: )([\w-]+)", r"[\1](/\1.md)", each) for each in plain]
    return "".join(pieces)
