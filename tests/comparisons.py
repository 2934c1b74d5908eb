"""A pytest plugin that records how close each comparison is to its limit: `pytest -p comparisons`.

It records passing assertions that compare single numbers (`a < b`, `a <= b < c`, `np.max(x) < y`,
`x == pytest.approx(y)`), and passing calls of `np.testing.assert_allclose` with a tolerance. For each of them it
appends a line of JSON to the file in the environment variable ASR_JAX_COMPARISONS: the id of the test, the source line,
and `share`, the difference divided by the tolerance (at 1 the comparison just passes). Limits that are not positive and
negative values have no share.

Comparisons that pytest's explanation of an assertion does not show are not recorded: comparisons within a call, such as
`(a < b).all()` and `all(a < b for …)`; negated comparisons; comparisons joined by `and` or `or`; comparisons of whole
arrays; `pytest.approx` of several numbers. Exceptions without an assertion, and assertions in modules that pytest does
not rewrite, are not recorded either; tests/conftest.py registers the helper modules for rewriting.

pytest must report passing assertions (`-o enable_assertion_pass_hook=true`), and must not find cached modules that it
rewrote without this option. scripts/test_instruction_sets.sh therefore uses a new folder for rewritten modules
(PYTHONPYCACHEPREFIX), runs the tests with several instruction sets of the CPU, and calls `main`.
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
        record(f"assert_allclose(rtol={rtol}, atol={atol})", allclose_share(actual, desired, rtol, atol))

    np.testing.assert_allclose = assert_allclose  # type: ignore[assignment]


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    record(f"{lineno}: {orig}", share(expl))


def record(what: str, value: float | None) -> None:
    if value is None or FILE not in os.environ:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    with open(os.environ[FILE], "a") as file:  # one line at a time, since several workers append
        file.write(json.dumps({"test": test, "what": what, "share": value}) + "\n")


def allclose_share(actual: Any, desired: Any, rtol: float, atol: float) -> float | None:
    actual, desired = np.broadcast_arrays(np.asarray(actual, np.float64), np.asarray(desired, np.float64))
    counts = np.isfinite(actual) & np.isfinite(desired)
    allowed = atol + rtol * np.abs(desired[counts])
    if not allowed.size or not allowed.min() > 0:  # equality is required, or no value is finite
        return None
    return float(np.max(np.abs(actual - desired)[counts] / allowed))


def share(explanation: str) -> float | None:
    """Share in pytest's explanation of a passing assertion; None if it does not compare a number with a limit.

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
    """Value of a text such as `1e-5`, `(0.25 * 3.0)`, `np.float64(0.1)` or `Array(0.1, dtype=float32)`.

    None for other texts and for values that are not finite.
    """
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
    """Prints comparisons with a share above `--above` in any of several files, largest first, one column per file.

    Comparisons with the same share in all files do not depend on rounding; they are counted but not listed.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="recorded files, NAME.jsonl")
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
        f"{len(shares)} comparisons are recorded, {len(near)} of them above {options.above} of their limits in a run. "
        f"{len(lacking)} are missing in at least one run (–), {len(lacking & near.keys())} of them above. "
        f"{len(alike)} are above and the same in all runs; the others above are:"
    )
    print("  ".join(f"{name:>8}" for name in names))
    for (test, what), each in sorted(near.items(), key=lambda row: -max(row[1].values())):
        if (test, what) not in alike:
            columns = [f"{each[name]:8.3f}" if name in each else f"{'–':>8}" for name in names]
            print("  ".join(columns) + f"  {test}  {what}")


if __name__ == "__main__":
    main()
