"""Writes settings as Python: the constructors of their classes, with comments beside the fields."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any, NamedTuple

WIDTH = 120
Comments = Mapping[str, str]
"""Comments by the dotted name of the field; an entry of a tuple has its number as the name."""


class Item(NamedTuple):
    """An argument or an entry: its text up to an opening bracket, the items in the bracket, and a comment."""

    text: str
    inner: tuple["Item", ...] = ()
    close: str = ""
    comment: str = ""

    def flat(self) -> str:
        """Text on one line."""
        comma = "," if self.text.endswith(("=(", " (")) or self.text == "(" else ""
        return self.text + ", ".join(each.flat() for each in self.inner) + comma * (len(self.inner) == 1) + self.close

    def has_comments(self) -> bool:
        return any(each.comment or each.has_comments() for each in self.inner)

    def lines(self, indent: int) -> Iterator[str]:
        """Lines of an argument, with a comma behind it. A comment that does not fit stands above it."""
        space = " " * indent
        flat, comment = f"{space}{self.flat()},", f"  # {self.comment}" * bool(self.comment)
        is_flat = not self.inner or (len(flat) <= WIDTH and not self.has_comments())
        if comment and not (is_flat and len(flat + comment) <= WIDTH):
            above = f"{space}# "
            yield from textwrap.wrap(
                " ".join(self.comment.split()),
                WIDTH,
                initial_indent=above,
                subsequent_indent=above,
                break_on_hyphens=False,
            )
            comment = ""
        if is_flat:
            yield flat + comment
            return
        yield f"{space}{self.text}"
        for each in self.inner:
            yield from each.lines(indent + 4)
        yield f"{space}{self.close},"


def expression(value: Any, comments: Comments, *, indent: int, before: str) -> tuple[str, set[tuple[str, str]]]:
    """Returns lines with an expression that makes the settings, and the imports that it needs: (module, class).

    Fields with their default are left out if they have no comment.

    Args:
        comments: Comments of fields of `value`.
        indent: Number of spaces before the first line.
        before: Text before the expression, such as `return`.
    """
    imports = set[tuple[str, str]]()
    item = _item(value, "", comments, imports, f"{before} ")
    return "\n".join(item.lines(indent)).removesuffix(","), imports


def _item(value: Any, place: str, comments: Comments, imports: set[tuple[str, str]], start: str) -> Item:
    def inner(named: Iterator[tuple[object, Any, str]]) -> tuple[Item, ...]:
        prefix = f"{place}." if place else ""
        return tuple(_item(each, f"{prefix}{name}", comments, imports, text) for name, each, text in named)

    comment, cls = comments.get(place, ""), type(value)
    if isinstance(value, dict):
        entries = inner((name, each, f'"{name}": ') for name, each in value.items())
        return Item(f"{start}{{", entries, "}", comment)
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        imports.add((cls.__module__, cls.__name__))
        if hasattr(value, "_fields"):
            arguments = tuple(Item(repr(each)) for each in value)
        else:
            shown = [each.name for each in dataclasses.fields(value) if _is_shown(each, value, place, comments)]
            arguments = inner((name, getattr(value, name), f"{name}=") for name in shown)
        return Item(f"{start}{cls.__name__}(", arguments, ")", comment)
    if isinstance(value, tuple | list):
        return Item(f"{start}(", inner((number, each, "") for number, each in enumerate(value)), ")", comment)
    return Item(f"{start}{_literal(value)}", comment=comment)


def _is_shown(each: dataclasses.Field[Any], value: Any, place: str, comments: Comments) -> bool:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    own = f"{place}.{each.name}" if place else each.name
    is_commented = any(f"{name}.".startswith(f"{own}.") for name in comments)
    return each.init and (default is MISSING or getattr(value, each.name) != default or is_commented)


def _literal(value: Any) -> str:
    if isinstance(value, str) and '"' not in value and value.isprintable():
        return '"' + value.replace("\\", "\\\\") + '"'
    return f'float("{value}")' if value in (float("inf"), float("-inf")) else repr(value)
