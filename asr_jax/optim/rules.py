"""Rules that assign values to parameters by their paths, such as `(("encoder/.*", 0.1), ("rest", 1.0))`."""

import re
from collections.abc import Iterable
from typing import Any

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.pytrees import Tree, flatten, unflatten

Rules = tuple[tuple[str, float], ...]
"""Pairs of a regular expression, which must match a whole path, and a value. `rest` in place of an expression matches
all paths that no other rule matches."""

REST = "rest"


def by_rules(paths: Iterable[str], rules: Rules, *, what: str) -> dict[str, float]:
    """Returns the value of the rule that matches each path.

    Args:
        what: Name of the setting that contains the rules, for messages.

    Raises:
        UserError: If a path does not match exactly one rule.
    """
    found = _named(paths, rules, what)
    problems = [
        f"{path} is matched by {' and '.join(named)}" if named else f"{path} is matched by no rule"
        for path, named in found.items()
        if len(named) != 1
    ]
    if problems:
        more = f" … and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(
            f"{what}: expected that exactly one rule matches each parameter; {'; '.join(problems[:5])}{more}. A rule "
            "is a regular expression that must match the whole path; ('rest', value) matches all others"
        )
    return {path: next(iter(named.values())) for path, named in found.items()}


def check_rules(params: Tree, rules: Rules, *, what: str) -> None:
    """Checks rules against the parameters of a model.

    Raises:
        UserError: If a parameter does not match exactly one rule, if a rule matches no parameter, or if an expression
            occurs twice.
    """
    paths = list(flatten(params))
    found, patterns = _named(paths, rules, what), [pattern for pattern, _ in rules]
    problems = [f"{pattern} occurs twice" for pattern in sorted({p for p in patterns if patterns.count(p) > 1})]
    used = {pattern for named in found.values() for pattern in named}
    problems += [
        f"{pattern} matches no parameter{nearest(pattern, paths)}"
        for pattern in patterns
        if pattern not in {*used, REST}
    ]
    if problems:
        raise UserError(f"{what}: {'; '.join(problems)}")
    by_rules(paths, rules, what=what)


def _named(paths: Iterable[str], rules: Rules, what: str) -> dict[str, dict[str, float]]:
    """Returns the patterns that match each path, with their values."""
    given = {pattern: (compiled(pattern, what), value) for pattern, value in rules if pattern != REST}
    rest = {pattern: value for pattern, value in rules if pattern == REST}
    return {
        path: {pattern: value for pattern, (expression, value) in given.items() if expression.fullmatch(path)} or rest
        for path in paths
    }


def tree_by_rules(params: Tree, rules: Rules, *, what: str) -> Tree:
    """Returns the values of `by_rules` as a tree of the parameters' structure.

    Raises:
        UserError: If a parameter does not match exactly one rule.
    """
    return unflatten(by_rules(flatten(params), rules, what=what))


def is_stacked(path: str) -> bool:
    """Returns whether the first axis of a parameter is the layers of a scanned stack, whose module is called `layers`.

    Operations per tensor then apply to each layer separately.
    """
    return "layers" in path.split("/")[:-1]


def compiled(pattern: str, what: str) -> re.Pattern[str]:
    """Returns a compiled regular expression; `what` is the name of its setting, for messages.

    Raises:
        UserError: If the pattern is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"{what}: {pattern!r} is not a regular expression: {error}") from error


def map_with_path(function: Any, tree: Tree, *others: Tree) -> Tree:
    """Returns `function(path, leaf, *other_leaves)` for every leaf of nested dicts, as nested dicts."""
    flat = [flatten(other) for other in others]
    return unflatten({path: function(path, leaf, *(f[path] for f in flat)) for path, leaf in flatten(tree).items()})
