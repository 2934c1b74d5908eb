"""Values for parameters by rules on their paths, such as `(("encoder/.*", 0.1), ("rest", 1.0))`."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.pytrees import Tree, flatten, unflatten

Rules = tuple[tuple[str, float], ...]
"""Pairs of a regular expression, which must match a whole path, and a value. The word `rest` in place of an expression
names what no other rule does."""

REST = "rest"


def by_rules(paths: Iterable[str], rules: Sequence[tuple[str, float]], *, what: str) -> dict[str, float]:
    """The value of the one rule that names each path. `what`: the setting, for messages.

    Raises: UserError where a path is named by no rule or by two.
    """
    found = _named(paths, rules, what)
    problems = [
        f"{path} is named by {' and '.join(named)}" if named else f"{path} is named by no rule"
        for path, named in found.items()
        if len(named) != 1
    ]
    if problems:
        more = f" … and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(
            f"{what}: expected that exactly one rule names each parameter; {'; '.join(problems[:5])}{more}. A rule is "
            "a regular expression that must match the whole path; ('rest', value) names all others"
        )
    return {path: next(iter(named.values())) for path, named in found.items()}


def check_rules(params: Tree, rules: Sequence[tuple[str, float]], *, what: str) -> None:
    """Raises: UserError as `by_rules`, and where a rule names no parameter, or is there twice."""
    paths = list(flatten(params))
    found, patterns = _named(paths, rules, what), [pattern for pattern, _ in rules]
    problems = [f"{pattern} is there twice" for pattern in sorted({p for p in patterns if patterns.count(p) > 1})]
    used = {pattern for named in found.values() for pattern in named}
    problems += [
        f"{pattern} names no parameter{nearest(pattern, paths)}" for pattern in patterns if pattern not in {*used, REST}
    ]
    if problems:
        raise UserError(f"{what}: {'; '.join(problems)}")
    by_rules(paths, rules, what=what)


def _named(paths: Iterable[str], rules: Sequence[tuple[str, float]], what: str) -> dict[str, dict[str, float]]:
    """The rules that name each path, with their values."""
    given = {pattern: (compiled(pattern, what), value) for pattern, value in rules if pattern != REST}
    rest = {pattern: value for pattern, value in rules if pattern == REST}
    return {
        path: {pattern: value for pattern, (expression, value) in given.items() if expression.fullmatch(path)} or rest
        for path in paths
    }


def tree_by_rules(params: Tree, rules: Sequence[tuple[str, float]], *, what: str) -> Tree:
    """`by_rules` as a tree of the parameters' structure."""
    return unflatten(by_rules(flatten(params), rules, what=what))


def is_stacked(path: str) -> bool:
    """Whether a parameter's first axis counts layers: those of a scanned stack, which are named `layers`. What is done
    for each tensor is then done for each layer.
    """
    return "layers" in path.split("/")[:-1]


def compiled(pattern: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"{what}: {pattern!r} is not a regular expression: {error}") from error


def map_with_path(function: Any, tree: Tree, *others: Tree) -> Tree:
    """`function(path, leaf, *leaves of others)` for every leaf of nested dicts."""
    flat = [flatten(other) for other in others]
    return unflatten({path: function(path, leaf, *(f[path] for f in flat)) for path, leaf in flatten(tree).items()})
