"""Shared helpers of tests: folders and cases of goldens, comparisons, and reports."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from asr_jax.core.precision import compiles_float16

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("ASR_JAX_SHARED", ROOT.parent / "shared"))
GOLDENS = Path(os.environ.get("ASR_JAX_GOLDENS", SHARED / "goldens"))


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


def slow_after_first(cases: list[Any]) -> list[Any]:
    """The cases of `golden_cases`, of which all but the first are slow tests."""
    return [*cases[:1], *slow(cases[1:])]


def having(cases: list[Any], prefix: str) -> list[Any]:
    """Cases of `golden_cases` with arrays whose names begin with `prefix`, and the skipped parameter."""
    return [case for case in cases if case.values[0] is None or case.values[0].has(prefix)]


def skip_without_float16() -> None:
    """Skips the test if XLA cannot compile float16."""
    if not compiles_float16():
        pytest.skip("XLA compiles no float16 for this CPU")


def max_abs(actual: Any, expected: Any) -> float:
    """Largest absolute difference."""
    return float(np.max(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)), initial=0.0))


def relative(actual: Any, expected: Any) -> float:
    """Largest absolute difference, relative to the largest expected magnitude."""
    scale = float(np.max(np.abs(np.asarray(expected, np.float64)), initial=0.0))
    return max_abs(actual, expected) / max(scale, 1e-30)


def report(record_property: Any, what: str, value: Any) -> float:
    """Stores a figure in the test report (--junitxml), prints it (shown with -s), and returns it."""
    record_property(what, float(value))  # xdist accepts only plain numbers
    print(f"  {what}: {float(value):.2e}")
    return float(value)
