"""Unique names, and nouns with their number."""

from collections import Counter
from collections.abc import Sequence


def counted(number: float | int, noun: str) -> str:
    """Returns a number with its noun in singular or plural, such as `1 file`, `1,200 files` or `2.5 epochs`."""
    return f"{number:{',' if isinstance(number, int) else ',.4g'}} {noun}{'s' * (number != 1)}"


def unique(names: Sequence[str]) -> list[str]:
    """Returns the names with `#2`, `#3` … appended to repetitions."""
    taken, seen, found = set(names), Counter[str](), list[str]()
    for name in names:
        seen[name] += 1
        new = name
        if seen[name] > 1:
            while (new := f"{name}#{seen[name]}") in taken:
                seen[name] += 1
            taken.add(new)
        found.append(new)
    return found
