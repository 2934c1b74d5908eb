"""A pytest plugin that utterances how near each comparison comes to its limit: `pytest -p comparisons`.

It utterances an assertion that passes and compares single numbers (`a < b`, `a <= b < c`, `np.max(x) < y`,
`x == pytest.approx(y)`), and every call of `np.testing.assert_allclose` that passes and allows a difference. For each
it appends a JSON line to the file named by the environment variable ASR_JAX_COMPARISONS: the test's id, the source line
and `share`, the part of what is allowed that the difference takes up (at 1 it just passes). A limit that is not
positive and a value that is negative give no share.

It does not utterance what it cannot read in pytest's explanation of an assertion: comparisons within a call, such as
`(a < b).all()` and `all(a < b for …)`; negated comparisons; comparisons joined by `and` or `or`; comparisons of whole
arrays; `pytest.approx` of several numbers. It sees neither what is raised without an assertion nor the assertions of a
module that pytest does not rewrite; tests/conftest.py registers the modules of helpers for rewriting.

pytest must be told to report passing assertions (`-o enable_assertion_pass_hook=true`), and must find no module that it
rewrote before without being told so: scripts/test_instruction_sets.sh gives it a folder of its own for what it rewrites
(PYTHONPYCACHEPREFIX), runs the tests for several instruction sets of the CPU and calls `main`.
"""

import argparse
import ast
import json
import math
import operator
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FILE = "ASR_JAX_COMPARISONS"
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.Pow: operator.pow}  # fmt: skip
WRAPPERS = re.compile(r"(?:np\.)?(?:float|int|u?int|bfloat)\d+\(|Array\(|array\(")


def pytest_configure(config: pytest.Config) -> None:
    plain = np.testing.assert_allclose

    def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **options: Any) -> None:
        plain(actual, desired, rtol=rtol, atol=atol, **options)
        utterance(f"assert_allclose(rtol={rtol}, atol={atol})", allclose_share(actual, desired, rtol, atol))

    np.testing.assert_allclose = assert_allclose  # type: ignore[assignment]


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    utterance(f"{lineno}: {orig}", share(expl))


def utterance(what: str, value: float | None) -> None:
    if value is None or FILE not in os.environ:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    with open(os.environ[FILE], "a") as file:  # a line at a time: several workers append
        file.write(json.dumps({"test": test, "what": what, "share": value}) + "\n")


def allclose_share(actual: Any, desired: Any, rtol: float, atol: float) -> float | None:
    actual, desired = np.broadcast_arrays(np.asarray(actual, np.float64), np.asarray(desired, np.float64))
    counts = np.isfinite(actual) & np.isfinite(desired)
    allowed = atol + rtol * np.abs(desired[counts])
    if not allowed.size or not allowed.min() > 0:  # equality, or nothing that is finite
        return None
    return float(np.max(np.abs(actual - desired)[counts] / allowed))


def share(explanation: str) -> float | None:
    """Of pytest's explanation of an assertion that passed; None where it does not compare a number with a limit.

    For `difference < limit` it is difference / limit, for `value > limit` with positive numbers limit / value.
    """
    first = explanation.partition("\n")[0]
    approximate = re.fullmatch(r"\(?(\S+) == (\S+) ± ([\d.e+-]+)\)?", first)
    if approximate:
        values = [number(text) for text in approximate.groups()]
        if None in values or not values[2]:
            return None
        return abs(values[0] - values[1]) / values[2]  # type: ignore[operator]
    parts = re.split(r" (<=|<|>=|>) ", first)
    values = [number(text) for text in parts[::2]]
    if len(parts) < 3 or None in values:
        return None
    shares = []
    for left, sign, right in zip(values, parts[1::2], values[1:], strict=False):
        value, limit = (left, right) if sign.startswith("<") else (right, left)
        if limit <= 0 or value < 0:  # type: ignore[operator]
            continue
        shares.append(value / limit)  # type: ignore[operator]
    return max(shares, default=None)


def number(text: str) -> float | None:
    """Of `1e-5`, `(0.25 * 3.0)`, `np.float64(0.1)` or `Array(0.1, dtype=float32)`; None for anything else, for whole
    numbers that count something, and for what is not finite."""
    text = re.sub(r", dtype=\w+(, weak_type=True)?", "", WRAPPERS.sub("(", text))
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(node)


def main() -> None:
    """Prints the comparisons whose share is above `--above` in any of several files, largest first, a column a file.
    Those that have the same share in all files do not depend on rounding; they are counted and not listed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="NAME.jsonl, as recorded")
    parser.add_argument("--above", type=float, default=0.5)
    options = parser.parse_args()
    shares: dict[tuple[str, str], dict[str, float]] = {}
    for path in options.files:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            of_files = shares.setdefault((entry["test"], entry["what"]), {})
            of_files[path.stem] = max(entry["share"], of_files.get(path.stem, 0.0))
    names = [path.stem for path in options.files]
    near = {place: each for place, each in shares.items() if max(each.values()) > options.above}
    lacking = {place for place, each in shares.items() if len(each) < len(names)}
    same = {place for place, each in near.items() if len(set(each.values())) == 1}
    alike = same - lacking if len(names) > 1 else set()
    print(
        f"{len(shares)} comparisons were recorded, {len(near)} of them above {options.above} of their limits in a run. "
        f"{len(lacking)} are lacking in at least one run (–), {len(lacking & near.keys())} of them above. "
        f"{len(alike)} are above and the same in all runs; the others above are:"
    )
    print("  ".join(f"{name:>8}" for name in names))
    for (test, what), each in sorted(near.items(), key=lambda row: -max(row[1].values())):
        if (test, what) not in alike:
            columns = [f"{each[name]:8.3f}" if name in each else f"{'–':>8}" for name in names]
            print("  ".join(columns) + f"  {test}  {what}")


if __name__ == "__main__":
    main()
