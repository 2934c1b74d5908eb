"""Weights under another system's names, as parameters under ours, and back: by a table of rows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.pytrees import flatten, unflatten

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Layout:
    """How an array is stored by the other system: `ours` turns theirs into ours, `theirs` the other way."""

    ours: Callable[[np.ndarray], np.ndarray]
    theirs: Callable[[np.ndarray], np.ndarray]


def transposed(*axes: int) -> Layout:
    """Ours has their axes in the order `axes`."""
    return Layout(lambda x: x.transpose(axes), lambda x: x.transpose(tuple(np.argsort(axes))))


SAME = Layout(lambda x: x, lambda x: x)
LINEAR = transposed(1, 0)
"""[out in] to [in out]."""
CONV_2D = transposed(2, 3, 1, 0)
"""[out in time frequency] to [time frequency in out]."""
POINTWISE = Layout(lambda x: x[:, :, 0, 0].T, lambda x: x.T[:, :, None, None])
"""[out in 1 1] to [in out]."""
DEPTHWISE = Layout(lambda x: x[:, 0].T, lambda x: x.T[:, None])
"""[channels 1 taps] to [taps channels]."""
DEPTHWISE_2D = Layout(lambda x: x[:, 0].transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1)[:, None])
"""[channels 1 time frequency] to [time frequency channels]."""


@dataclass(frozen=True)
class Row:
    """One of their arrays; with `layer`, ours holds it as that entry of its first axis."""

    theirs: str
    ours: str
    layout: Layout = SAME
    layer: int | None = None


def import_params(weights: Weights, rows: Sequence[Row], *, unused: Mapping[str, str], source: str) -> dict[str, Any]:
    """Our parameters, float32, from all of `weights`.

    `unused`: a regular expression of names that have no row, with the reason. `source` is named in errors.

    Raises:
        UserError: names that the table does not have, or does not find.
    """
    wanted = {row.theirs for row in rows}
    missing = sorted(wanted - weights.keys())
    unknown = sorted(
        name for name in weights if name not in wanted and not any(re.fullmatch(pattern, name) for pattern in unused)
    )
    if missing or unknown:
        lines = [f"  {name}: expected, not there{nearest(name, unknown)}" for name in missing]
        lines += [f"  {name}: there, not expected{nearest(name, missing)}" for name in unknown]
        raise UserError(f"{source} does not fit the configured sizes (stacks, layers, causal):\n" + "\n".join(lines))
    flat: dict[str, Any] = {}
    for row in rows:
        array = row.layout.ours(np.asarray(weights[row.theirs], np.float32))
        if row.layer is None:
            flat[row.ours] = array
        else:
            flat.setdefault(row.ours, {})[row.layer] = array
    return unflatten({path: _stacked(value) for path, value in flat.items()})


def export_params(params: Any, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Their arrays from our parameters (or from anything of the same structure: gradients, averages).

    Raises:
        UserError: parameters that no row has.
    """
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items()}
    left = sorted(flat.keys() - {row.ours for row in rows})
    if left:
        raise UserError("no name is known there for the parameters " + ", ".join(left))
    return {
        row.theirs: row.layout.theirs(flat[row.ours] if row.layer is None else flat[row.ours][row.layer])
        for row in rows
    }


def check_shapes(params: Any, expected: Any, *, source: str) -> None:
    """Compares with what the model's `init` gives (arrays or shapes).

    Raises:
        UserError: paths or shapes that differ.
    """
    have = {path: tuple(leaf.shape) for path, leaf in flatten(params).items()}
    want = {path: tuple(leaf.shape) for path, leaf in flatten(expected).items()}
    differing = sorted(path for path in have.keys() | want.keys() if have.get(path) != want.get(path))
    if differing:
        lines = [f"  {path}: {have.get(path, 'nothing')}, expected {want.get(path, 'nothing')}" for path in differing]
        raise UserError(f"{source} does not fit the configured sizes:\n" + "\n".join(lines))


def _stacked(value: Any) -> np.ndarray:
    return np.stack([value[layer] for layer in sorted(value)]) if isinstance(value, dict) else value
