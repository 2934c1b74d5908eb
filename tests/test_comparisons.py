"""Every comparison with a tolerance calls a function of `tests/support.py`, which applies `ASR_JAX_LIMITS`.

Bounds that are not tolerances are assertions: standard errors, whole samples, printed decimals.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tests.support
from tests.support import approx, assert_close, assert_within

FOLDER = Path(__file__).parent
TOLERANT = {
    "assert_allclose", "allclose", "isclose", "approx", "assert_array_almost_equal", "assert_almost_equal",
    "assert_approx_equal", "assert_array_max_ulp", "assert_array_almost_equal_nulp", "assert_array_less",
    "assertAlmostEqual", "check_grads", "assert_trees_all_close", "assert_close",
}  # fmt: skip
"""Functions that compare with a tolerance. `assert_close` is also the name of a function of PyTorch."""
DIFFERENCES = {"max_abs", "relative"}


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def outside_comparisons(source: str) -> Iterator[int]:
    """Yields the lines of comparisons with a tolerance that `ASR_JAX_LIMITS` does not change.

    A comparison with a tolerance is a call of one of `TOLERANT`, or a condition that requires that one of
    `DIFFERENCES`, or any value below a number of at most 1e-3, is small. Bounds of counts, samples and statistics are
    larger, and are not found; nor are limits that have a name.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in TOLERANT:
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module not in ("support", "tests.support"):
            yield from (node.lineno for alias in node.names if alias.name in TOLERANT)
        if isinstance(node, ast.Assert) and has_tolerance(node.test):
            yield node.lineno
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise) and has_tolerance(node.test, negated=True):
            yield node.lineno


def has_tolerance(test: ast.expr, *, negated: bool = False) -> bool:
    """Returns whether a condition, or its negation, requires that a difference is small."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return has_tolerance(test.operand, negated=not negated)
    if isinstance(test, ast.Compare):
        pairs = [(right, left) if negated else (left, right) for left, right in ordered(test)]
        return any(is_tolerance(*pair) for pair in pairs) or any(
            has_tolerance(each) for operand in (test.left, *test.comparators) for each in inner(operand)
        )
    return any(has_tolerance(each, negated=negated) for each in inner(test))


def inner(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions directly below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        else:
            yield from inner(child)


def ordered(compare: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the lesser and the greater operand of each order in a chain of comparisons."""
    operands = [compare.left, *compare.comparators]
    for sign, left, right in zip(compare.ops, operands, operands[1:], strict=False):
        if isinstance(sign, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(sign, ast.Gt | ast.GtE):
            yield right, left


def is_tolerance(lesser: ast.expr, greater: ast.expr) -> bool:
    """Returns whether the lesser operand is a difference or the greater one a small number."""
    called = {name_of(call.func) for call in ast.walk(lesser) if isinstance(call, ast.Call)}
    numbers = (number(node) for node in ast.walk(greater))
    return (
        bool(called & DIFFERENCES)
        or any(0 < each <= 1e-3 for each in numbers)
        or any(isinstance(node, ast.Attribute) and node.attr == "eps" for node in ast.walk(greater))
    )


def number(node: ast.AST) -> float:
    """Returns the value of a float or of a power such as 2**-20; otherwise 0."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        try:
            return float(eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}))
        except NameError:
            return 0.0
    return 0.0


def test_all_comparisons_have_the_common_limits() -> None:
    found = [
        f"{path.relative_to(FOLDER)}:{line}"
        for path in sorted(FOLDER.rglob("*.py"))
        if path != Path(tests.support.__file__)
        for line in outside_comparisons(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "np.testing.assert_allclose(a, b)", "assert a == pytest.approx(b)", "assert max_abs(a, b) < 2",
        "from pytest import approx", "tree.map(partial(np.testing.assert_allclose, rtol=1e-9), a, b)",
        "assert all(relative(a, b) < 1e-5 for a, b in pairs)", "assert 1e-5 > difference",
        "assert np.abs(a - b).max() <= 1e-6 * largest", "assert not np.any(np.abs(a - b) > 1e-5)",
        "assert abs(a - b) < 2**-20", "assert abs(a - b) < np.finfo(np.float32).eps",
        "if max_abs(a, b) > 0.1: raise ValueError", "np.testing.assert_array_max_ulp(a, b)",
        "torch.testing.assert_close(a, b)",
    ],
)  # fmt: skip
def test_outside_comparisons_are_found(source: str) -> None:
    assert list(outside_comparisons(source)) == [1]


def test_limits_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASR_JAX_COMPARISONS", raising=False)

    def passes(limits: float) -> bool:
        monkeypatch.setattr(tests.support, "LIMITS", limits)
        results = []
        for compare in (
            lambda: assert_within(0.6, 0.1, scale=10),
            lambda: assert_close(np.float32([1.0, 2.0]), [1.0, 2.6], atol=1.0, rtol=0),
            lambda: assert_close([10.0], [10.6], rtol=1.0 / 10.6, atol=0),
        ):
            try:
                compare()
                results.append(True)
            except AssertionError:
                results.append(False)
        results.append(approx(1.0, abs=0.1) == 1.06)
        assert len(set(results)) == 1
        return results[0]

    assert passes(1.0)
    assert not passes(0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0])
def test_what_is_above_or_no_number_fails(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASR_JAX_COMPARISONS", raising=False)
    with pytest.raises(AssertionError, match=r"angle is .*: expected at most"):
        assert_within(value, 1.0, what="angle")
