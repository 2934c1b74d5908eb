"""Names that are told apart."""

from collections import Counter
from collections.abc import Sequence


def unique(names: Sequence[str]) -> list[str]:
    """The same names, with `#2`, `#3` … behind those that were there before."""
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
