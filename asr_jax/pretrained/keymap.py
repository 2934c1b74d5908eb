"""Weights under another system's names, as parameters under ours, and back: by a table of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten

NamedWeights = Mapping[str, np.ndarray]


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
CONV_1D = transposed(2, 1, 0)
"""[out in taps] to [taps in out]."""
CONV_2D = transposed(2, 3, 1, 0)
"""[out in time frequency] to [time frequency in out]."""
POINTWISE = Layout(lambda x: x[:, :, 0, 0].T, lambda x: x.T[:, :, None, None])
"""[out in 1 1] to [in out]."""
POINTWISE_1D = Layout(lambda x: x[:, :, 0].T, lambda x: x.T[:, :, None])
"""[out in 1] to [in out]."""
DEPTHWISE = Layout(lambda x: x[:, 0].T, lambda x: x.T[:, None])
"""[channels 1 taps] to [taps channels]."""
DEPTHWISE_2D = Layout(lambda x: x[:, 0].transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1)[:, None])
"""[channels 1 time frequency] to [time frequency channels]."""


def flattened(channels: int) -> Layout:
    """[out channels·frequency] to [frequency·channels out]: of what reads the output of a convolution."""

    def ours(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), channels, -1).transpose(2, 1, 0).reshape(-1, len(x))

    def theirs(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, channels, x.shape[1]).transpose(2, 1, 0).reshape(x.shape[1], -1)

    return Layout(ours, theirs)


@dataclass(frozen=True)
class Row:
    """One of their arrays; with `layer`, ours holds it as that entry of its first axis."""

    theirs: str
    ours: str
    layout: Layout = SAME
    layer: int | None = None


class Found(NamedTuple):
    """What a table finds in a file."""

    params: dict[str, np.ndarray]
    """float32, by our paths: those that are whole. What cannot be laid out as ours is as it is there."""
    missing: list[str]
    """Their names that the table has and the file does not."""
    left: list[str]
    """Their names that the file has and the table does not."""


def find_params(weights: NamedWeights, rows: Sequence[Row]) -> Found:
    """Our parameters as far as `weights` have them."""
    of_path: dict[str, list[Row]] = {}
    for row in rows:
        of_path.setdefault(row.ours, []).append(row)
    whole = {path: needed for path, needed in of_path.items() if all(row.theirs in weights for row in needed)}
    wanted = {row.theirs for row in rows}
    return Found(
        {path: _laid_out(weights, needed) for path, needed in whole.items()},
        sorted(wanted - weights.keys()),
        sorted(weights.keys() - wanted),
    )


def export_params(params: Any, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Their arrays from our parameters, or a part of them (or from anything of the same structure: gradients,
    averages).

    Raises:
        UserError: parameters that no row has.
    """
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items()}
    if left := sorted(flat.keys() - {row.ours for row in rows}):
        raise UserError("no name is known there for the parameters " + ", ".join(left))
    return {
        row.theirs: row.layout.theirs(flat[row.ours] if row.layer is None else flat[row.ours][row.layer])
        for row in rows
        if row.ours in flat
    }


def _laid_out(weights: NamedWeights, rows: Sequence[Row]) -> np.ndarray:
    """One of our parameters, of its row or of one row for each layer."""
    arrays = []
    for row in rows:
        array = np.asarray(weights[row.theirs], np.float32)
        try:
            arrays.append(row.layout.ours(array))
        except (ValueError, IndexError):  # other axes: whoever compares shapes sees theirs
            return array
    if rows[0].layer is None:
        return arrays[0]
    other = next((array for array in arrays if array.shape != arrays[0].shape), None)
    in_order = sorted(range(len(rows)), key=lambda number: rows[number].layer or 0)
    return np.stack([arrays[number] for number in in_order]) if other is None else other
