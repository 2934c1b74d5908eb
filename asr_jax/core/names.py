"""Unique names."""

from collections import Counter
from collections.abc import Sequence


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
