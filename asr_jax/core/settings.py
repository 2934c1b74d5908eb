"""Settings: frozen dataclasses in which each field is declared once, with its range beside it."""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, dataclass_transform, get_args, get_origin, get_type_hints

from beartype import BeartypeConf
from beartype.door import is_bearable

from asr_jax.core.paths import A_PATH, at_home

INT_IS_FLOAT = BeartypeConf(is_pep484_tower=True)


class Range(NamedTuple):
    """Range of a number. NaN is outside of every range; infinity is inside only where it is an inclusive limit."""

    least: float | None = None
    """Inclusive lower limit. None: `above`."""
    most: float | None = None
    """Inclusive upper limit. None: `below`."""
    above: float = -math.inf
    """Exclusive lower limit."""
    below: float = math.inf
    """Exclusive upper limit."""

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        is_above = value > self.above if self.least is None else value >= self.least
        return bool(is_above and (value < self.below if self.most is None else value <= self.most))

    def __str__(self) -> str:
        limits = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        words = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None and math.isfinite(limit)]
        return " and ".join(words) or "a finite number"


def between(least: float | None = None, most: float | None = None) -> Range:
    """Returns a range with inclusive limits. None: no limit, but infinity is outside."""
    return Range(least, most)


def above(limit: float, *, most: float | None = None, below: float = math.inf) -> Range:
    """Returns a range with an exclusive lower limit."""
    return Range(most=most, above=limit, below=below)


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
Finite = Annotated[float, Range()]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
"""A probability or a share, from 0 to 1."""
ShareBelow1 = Annotated[float, Range(least=0, below=1)]
"""A dropout rate or the decay of an average, at least 0 and below 1."""


@dataclass_transform()  # not frozen_default=True: mypy then takes changed defaults for properties
def settings[Settings](cls: type[Settings]) -> type[Settings]:
    """Makes a class a frozen dataclass, and checks its values when an object of it is made (see `check`).

    An assignment without annotation to a field of a base class changes the default of the field in this class.
    """
    return _made(cls, kw_only=False)


@dataclass_transform(kw_only_default=True)
def command_options[Options](cls: type[Options]) -> type[Options]:
    """As `settings`, for the options of a command: fields are keyword-only, so that required ones may follow others."""
    return _made(cls, kw_only=True)


def _made[Settings](cls: type[Settings], *, kw_only: bool) -> type[Settings]:
    annotations = inspect.get_annotations(cls)
    for base in cls.__mro__[1:]:
        for name, annotation in inspect.get_annotations(base).items():
            if name in vars(cls) and name in getattr(base, "__dataclass_fields__", ()):
                annotations.setdefault(name, annotation)
    cls.__annotations__ = annotations
    if not hasattr(cls, "__post_init__"):
        cls.__post_init__ = check  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)


def check(values: Any) -> None:
    """Checks that the fields of settings are in their ranges, and fit each other; resolves `~` in paths.

    Ranges are part of the annotations, as `Annotated[int, between(1, 8)]`. A class states checks across its fields in
    a method `problems`, which yields a message for each mistake.

    Raises:
        ValueError: If a value is of another type or outside of its range, or if `problems` yields a message. It
            contains all messages.
    """
    found, hints, plain = list[str](), get_type_hints(type(values), include_extras=True), get_type_hints(type(values))
    for field in dataclasses.fields(values):
        value, kind = getattr(values, field.name), plain[field.name]
        if not is_bearable(value, kind, conf=INT_IS_FLOAT):
            shown = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
            shown = re.sub(r"Literal\[(.*?)\]", r"one of \1", re.sub(r"^Optional\[(.*)\]$", r"\1 | None", shown))
            found.append(f"{field.name} is {value!r}: expected {shown}")
            continue
        if (resolved := _with_paths(hints[field.name], value, at_home)) != value:
            object.__setattr__(values, field.name, resolved)
            value = resolved
        start = "each " * isinstance(value, tuple) + "a finite number, " * (value in (math.inf, -math.inf))
        found += [f"{field.name} is {value}: expected {start}{limits}" for limits in _missed(hints[field.name], value)]
    try:
        found += getattr(values, "problems", tuple)()
    except Exception:  # a check across fields may fail if a field is out of range
        if not found:
            raise
    if found:
        raise ValueError("; ".join(found))


def with_paths[Settings](tree: Settings, change: Callable[[str], str]) -> Settings:
    """Returns a tree of settings with other paths.

    Args:
        tree: Dataclass, or dictionary or tuple of dataclasses.
        change: Returns the new path for each path that is not empty.
    """
    if isinstance(tree, dict):
        return cast(Settings, {name: with_paths(each, change) for name, each in tree.items()})
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return cast(Settings, tuple(with_paths(each, change) for each in tree))
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return tree
    hints = get_type_hints(type(tree), include_extras=True)
    before = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree) if field.init}
    after = {name: with_paths(_with_paths(hints[name], value, change), change) for name, value in before.items()}
    return dataclasses.replace(tree, **{name: value for name, value in after.items() if value != before[name]})


def _with_paths(hint: Any, value: Any, change: Callable[[str], str]) -> Any:
    """Returns the value of a field with other paths, if the type of the field says that it has some."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_with_paths(hint, each, change) for each in value)
    if isinstance(value, Path):
        return Path(change(str(value)))
    return change(value) if isinstance(value, str) and value and _has_paths(hint) else value


def _has_paths(hint: Any) -> bool:
    return A_PATH in getattr(hint, "__metadata__", ()) or any(map(_has_paths, get_args(hint)))


def _missed(hint: Any, value: Any) -> set[Range]:
    """Returns the ranges in a type that a value of this type, or a number in it, is outside of."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return _missed(parts[0], value) | {each for each in parts[1:] if isinstance(each, Range) and value not in each}
    if get_origin(hint) is tuple and isinstance(value, tuple):
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        return set[Range]().union(*(_missed(kind, item) for kind, item in zip(kinds, value, strict=False)))
    ranges = [] if value is None else [part for part in parts if get_origin(part) is Annotated]
    return set[Range]().union(*(_missed(part, value) for part in ranges))
