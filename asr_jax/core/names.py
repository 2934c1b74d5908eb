"""Unique names, names in messages, and nouns with their number."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence


def counted(number: float | int, noun: str) -> str:
    """Returns a number with its noun in singular or plural, such as `1 file`, `1,200 files` or `2.5 epochs`."""
    return f"{number:{',' if isinstance(number, int) else ',.4g'}} {noun}{'s' * (number != 1)}"


def one_line(name: str) -> str:
    """Returns a name with escape sequences for control characters, separators of lines, and lone surrogates."""
    separators = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
    return re.sub(separators, lambda found: found[0].encode("unicode_escape").decode(), name)


def unique(names: Sequence[str], *, key: Callable[[str], str] = str, reserved: Iterable[str] = ()) -> list[str]:
    """Returns the names with `#2`, `#3` … appended to repetitions.

    Args:
        key: Function that returns equal texts for names that count as equal.
        reserved: Keys that no result has.
    """
    seen, found = Counter(set(reserved)), list[str]()
    taken = {*seen, *map(key, names)}
    for name in names:
        new, of = name, key(name)
        seen[of] += 1
        if seen[of] > 1:
            while key(new := f"{name}#{seen[of]}") in taken:
                seen[of] += 1
            taken.add(key(new))
        found.append(new)
    return found
