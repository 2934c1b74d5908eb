"""Writes settings as Python: the constructors of their classes, with comments beside the fields."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

WIDTH = 120
Comments = Mapping[str, str]
"""Comments by the dotted name of the field; an entry of a tuple has its number as the name."""


@dataclass
class Item:
    """An argument or an entry: its text up to an opening bracket, the items in the bracket, and a comment."""

    text: str
    inner: list["Item"] = field(default_factory=list)
    close: str = ""
    comment: str = ""

    def flat(self) -> str:
        """Text on one line."""
        inner = ", ".join(each.flat() for each in self.inner)
        comma = "," if self.close == ")" and self.text.endswith("(") and self.is_tuple and len(self.inner) == 1 else ""
        return f"{self.text}{inner}{comma}{self.close}"

    @property
    def is_tuple(self) -> bool:
        return self.text in ("(",) or self.text.endswith("=(")

    def has_comments(self) -> bool:
        return any(each.comment or each.has_comments() for each in self.inner)

    def lines(self, indent: int) -> Iterator[str]:
        """Lines of an argument, with a comma behind it. A comment that does not fit stands above it."""
        space, comment = " " * indent, f"  # {self.comment}" if self.comment else ""
        flat, tail = f"{space}{self.flat()},", "" if self.inner and self.has_comments() else comment
        fits = len(flat) <= WIDTH and not self.has_comments()
        if comment and (not fits or len(flat + comment) > WIDTH):
            yield from _wrapped(self.comment, space)
            tail = ""
        if fits or not self.inner:
            yield flat + tail
            return
        yield f"{space}{self.text}"
        for each in self.inner:
            yield from each.lines(indent + 4)
        yield f"{space}{self.close},"


def _wrapped(comment: str, space: str) -> Iterator[str]:
    line = f"{space}#"
    for word in comment.split():
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = f"{space}#"
        line += f" {word}"
    yield line


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


def _item(value: Any, place: str, comments: Comments, imports: set[tuple[str, str]], start: str = "") -> Item:
    comment = comments.get(place, "")
    if isinstance(value, dict):
        inner = [_item(each, _at(place, name), comments, imports, f'"{name}": ') for name, each in value.items()]
        return Item(f"{start}{{", inner, "}", comment)
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        cls = type(value)
        imports.add((cls.__module__, cls.__name__))
        if not dataclasses.is_dataclass(value):
            return Item(f"{start}{cls.__name__}(", [Item(repr(each)) for each in value], ")", comment)
        arguments = [
            _item(getattr(value, each.name), _at(place, each.name), comments, imports, f"{each.name}=")
            for each in dataclasses.fields(cls)
            if each.init and _is_shown(each, value, _at(place, each.name), comments)
        ]
        return Item(f"{start}{cls.__name__}(", arguments, ")", comment)
    if isinstance(value, tuple | list):
        entries = [_item(each, _at(place, number), comments, imports) for number, each in enumerate(value)]
        return Item(f"{start}(", entries, ")", comment)
    return Item(f"{start}{_literal(value)}", comment=comment)


def _is_shown(each: dataclasses.Field[Any], value: Any, place: str, comments: Comments) -> bool:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    return (
        default is MISSING
        or getattr(value, each.name) != default
        or any(name == place or name.startswith(f"{place}.") for name in comments)
    )


def _at(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if '"' in value or not value.isprintable() else '"' + value.replace("\\", "\\\\") + '"'
    if isinstance(value, float):
        return f'float("{value}")' if value in (float("inf"), float("-inf")) else repr(value)
    return repr(value)
