"""Conversion between another system's weights and parameters of this package, by a table of name pairs."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten

NamedWeights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TensorLayout:
    """Conversion between the array layouts of the two systems."""

    ours: Callable[[np.ndarray], np.ndarray]
    """Converts an array of the other system to this package's layout."""
    theirs: Callable[[np.ndarray], np.ndarray]
    """Converts an array of this package to the other system's layout."""


def transposed(*axes: int) -> TensorLayout:
    """Returns a layout in which this package has the other system's axes in the order `axes`."""
    return TensorLayout(lambda x: x.transpose(axes), lambda x: x.transpose(tuple(np.argsort(axes))))


SAME = TensorLayout(lambda x: x, lambda x: x)
LINEAR = transposed(1, 0)
"""Converts [out in] to [in out]."""
CONV_1D = transposed(2, 1, 0)
"""Converts [out in taps] to [taps in out]."""
CONV_2D = transposed(2, 3, 1, 0)
"""Converts [out in time frequency] to [time frequency in out]."""
POINTWISE = TensorLayout(lambda x: x[:, :, 0, 0].T, lambda x: x.T[:, :, None, None])
"""Converts [out in 1 1] to [in out]."""
POINTWISE_1D = TensorLayout(lambda x: x[:, :, 0].T, lambda x: x.T[:, :, None])
"""Converts [out in 1] to [in out]."""
DEPTHWISE = TensorLayout(lambda x: x[:, 0].T, lambda x: x.T[:, None])
"""Converts [channels 1 taps] to [taps channels]."""
DEPTHWISE_2D = TensorLayout(lambda x: x[:, 0].transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1)[:, None])
"""Converts [channels 1 time frequency] to [time frequency channels]."""


def part_of(layout: TensorLayout, first: int, last: int, num: int) -> TensorLayout:
    """Returns a layout that converts parts `first` to `last` - 1 of the `num` equal parts of an array's first axis.

    The rows of all parts have the same name in the other system, and `export_params` joins their arrays in the order of
    the rows.
    """
    return TensorLayout(lambda x: layout.ours(x[x.shape[0] * first // num : x.shape[0] * last // num]), layout.theirs)


def flattened(channels: int) -> TensorLayout:
    """Returns a layout that converts [out channels·frequency] to [frequency·channels out].

    It is the layout of a linear layer on the output of a 2-D convolution with `channels` channels.
    """

    def ours(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), channels, -1).transpose(2, 1, 0).reshape(-1, len(x))

    def theirs(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, channels, x.shape[1]).transpose(2, 1, 0).reshape(x.shape[1], -1)

    return TensorLayout(ours, theirs)


@dataclass(frozen=True)
class Row:
    """Pair of an array of the other system and a parameter of this package."""

    theirs: str
    """Name in the other system."""
    ours: str
    """Parameter path in this package."""
    layout: TensorLayout = SAME
    layer: int | None = None
    """Index on the parameter's first axis that the array is stored at; None: the array is the whole parameter."""

    def renamed(self, replacements: "Replacements") -> "Row":
        """Returns the row with replaced parts of the name in the other system."""
        return replace(self, theirs=renamed(self.theirs, replacements))


class Leaf(NamedTuple):
    """Array of a module."""

    theirs: str
    """Name of the array within the module in the other system. Empty: the module is the array."""
    ours: str
    layout: TensorLayout = SAME
    collection: str = "params"


Kind = TensorLayout | tuple[Leaf, ...]
"""Arrays of a module. A layout stands for a layer with a bias, whose kernel has this layout."""
Table = Iterable[tuple[str, str, Kind]]
"""Modules: the name in the other system, the path in this package, and the kind."""
NORM = (Leaf("weight", "scale"), Leaf("bias", "bias"))
GROUP_NORM = (Leaf("weight", "gain"), Leaf("bias", "bias"))
BATCH_NORM = (
    *GROUP_NORM,
    Leaf("running_mean", "mean", collection="batch_stats"),
    Leaf("running_var", "variance", collection="batch_stats"),
)


def kernel(layout: TensorLayout) -> tuple[Leaf, ...]:
    """Returns the kind of a layer without a bias."""
    return (Leaf("weight", "kernel", layout),)


def array(layout: TensorLayout = SAME) -> tuple[Leaf, ...]:
    """Returns the kind of a single array."""
    return (Leaf("", "", layout),)


def attention(
    theirs: str, ours: str, names: Sequence[str] = ("linear_q", "linear_k", "linear_v", "linear_out")
) -> tuple[tuple[str, str, TensorLayout], ...]:
    """Returns the layers of queries, keys, values and output of an attention module, with their names elsewhere."""
    parts = zip(names, ("query", "key", "value", "out"), strict=True)
    return tuple((f"{theirs}.{name}", f"{ours}/{part}", LINEAR) for name, part in parts)


def fused_attention(**thirds: int) -> tuple[Leaf, ...]:
    """Returns the kind of PyTorch's MultiheadAttention, in which one array has queries, keys and values.

    Args:
        thirds: Number of thirds of the array that each layer here has: query=1, key=1, value=1, or query=1,
            key_value=2.
    """
    leaves, first = [Leaf("out_proj.weight", "out/kernel", LINEAR), Leaf("out_proj.bias", "out/bias")], 0
    for name, num in thirds.items():
        leaves.append(Leaf("in_proj_weight", f"{name}/kernel", part_of(LINEAR, first, first + num, 3)))
        leaves.append(Leaf("in_proj_bias", f"{name}/bias", part_of(SAME, first, first + num, 3)))
        first += num
    return tuple(leaves)


def _leaves(kind: Kind) -> tuple[Leaf, ...]:
    return (*kernel(kind), Leaf("bias", "bias")) if isinstance(kind, TensorLayout) else kind


def rows_of(table: Table, theirs: str = "", ours: str = "", layer: int | None = None) -> list[Row]:
    """Returns the rows of modules.

    Args:
        theirs: Module of the other system that contains them all. Empty: none does.
        ours: Path of the same module in this package, without `params/`.
        layer: As in `Row`.
    """
    return [
        Row(
            ".".join(filter(None, (theirs, name, leaf.theirs))),
            "/".join(filter(None, (leaf.collection, ours, path, leaf.ours))),
            leaf.layout,
            layer,
        )
        for name, path, kind in table
        for leaf in _leaves(kind)
    ]


Replacements = Sequence[tuple[str, str]]
"""Regular expressions of parts of names, and what replaces them, in this order."""


def renamed(name: str, replacements: Replacements) -> str:
    """Returns a name with replaced parts."""
    for pattern, new in replacements:
        name = re.sub(pattern, new, name)
    return name


class FoundWeights(NamedTuple):
    """Result of `find_params`."""

    params: dict[str, np.ndarray]
    """Parameters in float32 by path, without those for which an array is missing. If an array does not fit its layout
    or the other layers' shape, it is returned in place of the whole parameter."""
    missing: list[str]
    """Names that the table has and the file does not."""
    left: list[str]
    """Names that the file has and the table does not."""


def find_params(weights: NamedWeights, rows: Sequence[Row]) -> FoundWeights:
    """Returns the parameters for which `weights` contain all arrays."""
    of_path: dict[str, list[Row]] = {}
    for row in rows:
        of_path.setdefault(row.ours, []).append(row)
    whole = {path: needed for path, needed in of_path.items() if all(row.theirs in weights for row in needed)}
    wanted = {row.theirs for row in rows}
    return FoundWeights(
        {path: _laid_out(weights, needed) for path, needed in whole.items()},
        sorted(wanted - weights.keys()),
        sorted(weights.keys() - wanted),
    )


def export_params(params: Any, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the arrays of the other system for a tree of parameters.

    The tree may contain some of the parameters, or other values of the same structure, such as gradients and averages.
    The arrays of rows with the same name are joined along the first axis (see `part_of`): the tree must have all of
    them or none.

    Raises:
        UserError: If no row has a parameter of the tree.
    """
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items()}
    if left := sorted(flat.keys() - {row.ours for row in rows}):
        raise UserError("the other system has no names for the parameters " + ", ".join(left))
    parts: dict[str, list[np.ndarray]] = {}
    for row in rows:
        if row.ours in flat:
            array = flat[row.ours] if row.layer is None else flat[row.ours][row.layer]
            parts.setdefault(row.theirs, []).append(row.layout.theirs(array))
    return {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in parts.items()}


def _laid_out(weights: NamedWeights, rows: Sequence[Row]) -> np.ndarray:
    """Returns one parameter, from its only row or from one row per layer."""
    arrays = []
    for row in rows:
        array = np.asarray(weights[row.theirs], np.float32)
        try:
            arrays.append(row.layout.ours(array))
        except (ValueError, IndexError):  # returned unconverted: the caller compares shapes and reports the mismatch
            return array
    if rows[0].layer is None:
        return arrays[0]
    other = next((array for array in arrays if array.shape != arrays[0].shape), None)
    in_order = sorted(range(len(rows)), key=lambda number: rows[number].layer or 0)
    return np.stack([arrays[number] for number in in_order]) if other is None else other
