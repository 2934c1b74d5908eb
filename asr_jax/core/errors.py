"""Errors that are for a person: commands print their message without a traceback and exit with their code."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A wrong beginning: a setting, a path or a file that cannot work. Nothing was written.

    The message gives the value, what was expected and the mend.
    """

    exit_code = 2


class RunError(UserError):
    """Work that had begun and could not go on (too many broken files, a full disk, a loss that stays infinite)."""

    exit_code = 1


def nearest(name: str, names: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the most similar of `names`, or an empty string where none is similar."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def check_numbers(
    settings: Any, *names: str, above: float | None = None, least: float | None = None, most: float | None = None
) -> None:
    """Raises: ValueError where one of some fields is not within limits, or not finite."""
    limits = {"above": above, "at least": least, "at most": most}
    expected = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
    for name in names:
        value = getattr(settings, name)
        is_within = (
            (above is None or value > above) and (least is None or value >= least) and (most is None or value <= most)
        )
        if not (abs(value) < float("inf") and is_within):
            raise ValueError(f"{name} is {value}: expected a finite number {expected}")
