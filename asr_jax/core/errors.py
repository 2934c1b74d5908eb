"""Errors for the user: commands print the message without a traceback and exit with the error's code."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An invalid setting, path or file, found before anything is written.

    The message contains the value, what was expected, and the fix.
    """

    exit_code = 2
    is_planned = False
    """Whether the command ended as requested, as after a time limit. Its message is then not marked as an error."""


class RunError(UserError):
    """A failure after work has begun: too many unreadable files, a full disk, a loss that stays infinite."""

    exit_code = 1


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Returns `"; did you mean 'x'?"` for the most similar of `names`, or "" if none is similar."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {found[0]!r}?" if found else ""
