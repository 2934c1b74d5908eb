"""Shared helpers of tests: folders and cases of goldens, comparisons, and reports."""

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from asr_jax.core.precision import compiles_float16
from asr_jax.metrics.errors import ErrorCounts, word_errors

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("ASR_JAX_SHARED", ROOT.parent / "shared"))
GOLDENS = Path(os.environ.get("ASR_JAX_GOLDENS", SHARED / "goldens"))

# Compilation takes most of the time of small programs that run only a few times.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@dataclass(frozen=True)
class GoldenCase:
    """Values computed by another system: `<family>/<name>.json` beside `<name>.safetensors`."""

    path: Path
    info: dict[str, Any]

    def arrays(self) -> dict[str, np.ndarray]:
        return load_file(self.path.with_suffix(".safetensors"))

    def has(self, prefix: str) -> bool:
        """Whether the name of an array begins with `prefix`; arrays are not read."""
        with safe_open(self.path.with_suffix(".safetensors"), "numpy") as file:
            return any(name.startswith(prefix) for name in file.keys())  # noqa: SIM118  not a mapping


def part(arrays: Mapping[str, np.ndarray], prefix: str, other: str = "") -> dict[str, np.ndarray]:
    """Arrays whose names begin with `prefix`, by their names with `other` instead of it."""
    return {other + name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def cases_in(folder: Path, pattern: str = "*") -> list[Any]:
    """One pytest parameter for each case in a folder."""
    paths = sorted(folder.glob(pattern + ".json"))
    return [pytest.param(GoldenCase(path, json.loads(path.read_text())), id=path.stem) for path in paths]


def golden_cases(family: str, pattern: str) -> list[Any]:
    """One pytest parameter for each case; without cases, a single skipped one with the reason."""
    cases = cases_in(GOLDENS / family, pattern)
    if not cases:
        reason = f"no goldens {family}/{pattern}.json under {GOLDENS}: set ASR_JAX_GOLDENS to their folder"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return cases


def slow(cases: list[Any]) -> list[Any]:
    """The cases of `golden_cases` as slow tests."""
    return [pytest.param(*each.values, id=each.id, marks=(*each.marks, pytest.mark.slow)) for each in cases]


def slow_after_first(cases: list[Any], kind: Callable[[Any], Any] = lambda _: None) -> list[Any]:
    """The parameters; all but the first of each kind are slow tests. `kind` takes a parameter's first value."""
    known, found = list[Any](), list[Any]()
    for each in cases:
        found += slow([each]) if (of := kind(each.values[0])) in known else [each]
        known.append(of)
    return found


def having(cases: list[Any], prefix: str) -> list[Any]:
    """Cases of `golden_cases` with arrays whose names begin with `prefix`, and the skipped parameter."""
    return [case for case in cases if case.values[0] is None or case.values[0].has(prefix)]


def skip_without_float16() -> None:
    """Skips the test if XLA cannot compile float16."""
    if not compiles_float16():
        pytest.skip("XLA compiles no float16 for this CPU")


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Counts the character edits of one utterance, including inner spaces; `words` is the number of characters."""
    spaced = (" ".join(text.strip().replace(" ", "\0")) for text in (reference, hypothesis))
    return word_errors(*spaced)


def max_abs(actual: Any, expected: Any) -> float:
    """Largest absolute difference. Fails if it is not a number: Python's `max` of several differences can omit NaN."""
    found = float(np.max(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)), initial=0.0))
    assert not np.isnan(found), "a difference is not a number"
    return found


def relative(actual: Any, expected: Any) -> float:
    """Largest absolute difference, relative to the largest expected magnitude."""
    scale = float(np.max(np.abs(np.asarray(expected, np.float64)), initial=0.0))
    return max_abs(actual, expected) / max(scale, 1e-30)


def log_softmax(logits: Any) -> np.ndarray:
    """Log-probabilities of logits over the last axis, computed in float64."""
    logits = np.asarray(logits, np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


ROUNDING = 2.0**-24
"""Largest relative rounding error of a number in float32."""
OUTPUTS = 1e-5
"""Limit of differences of outputs, relative to the largest one: 168 roundings in float32.

A model of 24 layers has about 500 operations in sequence. Their roundings on both sides add up to about the square root
of 1,000, which is 32, and later layers amplify the earlier ones. The largest difference in the shared cases is 64
roundings.
"""
LIMITS = float(os.environ.get("ASR_JAX_LIMITS", "1"))
"""Factor of the limits of all comparisons. `.ci/run` sets 0.5: differences on CPUs that round differently are up to
twice as large."""


def assert_within(value: Any, limit: float, *, scale: Any = 1.0, what: str = "difference") -> None:
    """Fails if `value` is negative, not a number, or above `limit` times `scale` times `LIMITS`.

    Comparisons with a tolerance call this function, `assert_close` or `approx`; tests/test_comparisons.py finds others.

    Args:
        value: Largest difference.
        limit: Largest difference that passes if `scale` and `LIMITS` are 1.
        scale: Magnitude of the compared values, for differences that grow with it.
        what: Name of the compared values in the message and in the record of comparisons.
    """
    value, limit = float(value), float(limit) * float(scale)
    print(f"  {what}: {value:.2e} of {limit:.2e}")  # shown with -s
    _record(what, value / limit if limit > 0 else 0.0)
    assert 0 <= value <= LIMITS * limit < float("inf"), (
        f"{what} is {value:.3e}: expected at most {LIMITS:g} × {limit:.3e}"
    )


def assert_close(actual: Any, desired: Any, rtol: float | None = None, atol: float = 0.0, *, what: str = "") -> None:
    """Fails if an element of `actual` differs by more than `atol` + `rtol` times the magnitude of `desired`.

    The shapes must be equal, unless one value is a number. NaN and infinities must be equal. Without limits, `rtol` is
    three units in the last place of float32.
    """
    assert not (np.ndim(actual) and np.ndim(desired)) or np.shape(actual) == np.shape(desired), (
        f"{what}: shapes {np.shape(actual)} and {np.shape(desired)}"
    )
    rtol = (0.0 if atol else 3 * 2.0**-23) if rtol is None else rtol
    arrays = np.broadcast_arrays(np.asarray(actual), np.asarray(desired))
    wide = [array.astype(np.result_type(array.dtype, np.float64)) for array in arrays]
    counts = np.isfinite(wide[0]) & np.isfinite(wide[1])
    difference, allowed = np.abs(wide[0][counts] - wide[1][counts]), atol + rtol * np.abs(wide[1][counts])
    if (allowed > 0).any():  # values whose allowed difference is 0 must be equal
        share = float(np.max(difference[allowed > 0] / allowed[allowed > 0]))
        _record(what or f"rtol={rtol:g}, atol={atol:g}", share)
    np.testing.assert_allclose(*wide, rtol=LIMITS * rtol, atol=LIMITS * atol, err_msg=what)


def assert_trees_close(actual: Any, expected: Any, limit: float) -> None:
    """Asserts that leaves of two pytrees differ by at most `limit` of the element and of the leaf's largest element."""

    def compare(path: Any, leaf: Any, other: Any) -> None:
        assert_close(leaf, other, rtol=limit, atol=limit * np.abs(other).max(), what=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(compare, actual, expected)


def assert_outputs(actual: Any, expected: Any, *, what: str) -> None:
    """Asserts that outputs of layers or of a model, for example log-probabilities, are close.

    Rounding errors are proportional to the magnitude of the values that are added, so the limit is `OUTPUTS` times the
    largest expected magnitude. The shapes must be equal.
    """
    assert np.shape(actual) == np.shape(expected), f"{what}: shapes {np.shape(actual)} and {np.shape(expected)}"
    assert np.size(expected), f"{what}: there is nothing to compare"
    assert_within(relative(actual, expected), OUTPUTS, what=what)


def assert_gradients(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    limit: float = 3e-4,
    *,
    roundings: float = 1,
    before_norm: Collection[str] = (),
) -> set[str]:
    """Asserts that gradients are close, and that gradients without an expected one are 0.

    Some gradients are sums of large terms that cancel, for example the gradient of the bias of keys. The sum is small
    or 0, but its rounding error is as large as that of other gradients.

    Args:
        actual: Gradients by name.
        expected: Gradients of the reference by name.
        limit: Allowed difference, relative to the largest value of the same gradient. The default is four times the
            largest difference in the shared cases, 8e-5, in which forward and backward pass amplify their roundings.
        roundings: Number of float32 roundings of the largest value of all gradients that is allowed in addition. The
            roundings of a sum of n terms add up to about the square root of n.
        before_norm: Names of biases right before a batch norm. The norm subtracts the mean, so their gradients are 0.
            Their terms are divided by the standard deviation of the channel, and the rounding errors add up to 4e-5 of
            the largest gradient in the shared cases, so values up to 1e-4 of it are allowed.

    Returns:
        Names of the gradients that are 0 except for these roundings.
    """
    assert actual.keys() >= expected.keys()
    largest = max(float(np.abs(array).max()) for array in expected.values())
    for name, array in actual.items():
        theirs = expected.get(name, np.zeros_like(array))
        assert np.shape(array) == np.shape(theirs), name
        if name in before_norm:
            assert_within(np.abs([array, theirs]).max(), 1e-4, scale=largest, what=f"gradient of {name}")
            continue
        scale = limit * float(np.abs(theirs).max()) + roundings * ROUNDING * largest
        assert_within(max_abs(array, theirs), 1, scale=scale, what=f"gradient of {name}")
    return {name for name, array in expected.items() if np.abs(array).max() < roundings * ROUNDING * largest}


def approx(expected: Any, rel: float | None = None, abs: float | None = None, *, nan_ok: bool = False) -> Any:
    """Returns `pytest.approx` of numbers, lists or dictionaries with tolerances times `LIMITS`.

    Without tolerances, `rel` is pytest's 1e-6, whatever `LIMITS`, for values in float64. `ASR_JAX_COMPARISONS` does not
    record these comparisons.
    """
    limits = [None if limit is None else LIMITS * limit for limit in (rel, abs)]
    return pytest.approx(expected, *limits, nan_ok=nan_ok)


def _record(what: str, share: float) -> None:
    """Appends a comparison to the file in ASR_JAX_COMPARISONS, which `tests/comparisons.py` reads.

    Args:
        what: Name of the compared values.
        share: Difference divided by its limit.
    """
    if path := os.environ.get("ASR_JAX_COMPARISONS"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        frame = sys._getframe(2)
        while frame.f_back and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        with open(path, "a", encoding="utf-8") as file:  # one line at a time, since several workers append
            file.write(json.dumps({"test": test, "what": f"{frame.f_lineno}: {what}", "share": share}) + "\n")
