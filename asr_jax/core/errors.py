"""Errors that are for a person: commands print their message without a traceback and exit with their code."""

import difflib
from collections.abc import Iterable


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
