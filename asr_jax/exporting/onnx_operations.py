"""Operations of JAX as operators of ONNX, each a function of a graph, the operation's inputs and its parameters."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from asr_jax.core.errors import UserError
from asr_jax.exporting.onnx_graph import Graph, Shape, Tensor, Value

Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}
"""Functions `(graph, out, *inputs, **parameters)` by the names of JAX's operations. `out` has the shapes and dtypes of
the outputs. A function returns one value, or a list of them."""


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Registers the function of an operation."""

    def register(function: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def made(name: str, out: Any) -> Tensor:
    """Returns a tensor with the shape and dtype of an output."""
    return Tensor(name, tuple(out.shape), tuple(out.shape), np.dtype(out.dtype))


# Functions of elements. The inputs have one shape. Those that are constant along an axis are stored with size 1.

OPERATORS = {
    "abs": "Abs", "add": "Add", "atan": "Atan", "ceil": "Ceil", "cos": "Cos", "div": "Div", "eq": "Equal", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log",
    "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not",
    "pow": "Pow", "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
"""Operators of ONNX that are operations of JAX."""
OF_BOOLS = {"max": "Or", "min": "And"}
"""Operators of ONNX for operations of truth values."""
ONE = np.float32(1)
COMPOSED: dict[str, Callable[..., str]] = {
    "clamp": lambda graph, low, x, high: graph.add("Min", graph.add("Max", x, low), high),
    "erfc": lambda graph, x: graph.add("Sub", graph.constant(ONE), graph.add("Erf", x)),
    "expm1": lambda graph, x: graph.add("Sub", graph.add("Exp", x), graph.constant(ONE)),
    "is_finite": lambda graph, x: graph.add("Less", graph.add("Abs", x), graph.constant(np.float32(np.inf))),
    "log1p": lambda graph, x: graph.add("Log", graph.add("Add", x, graph.constant(ONE))),
    "ne": lambda graph, a, b: graph.add("Not", graph.add("Equal", a, b)),
    "rem": lambda graph, a, b: graph.add("Mod", a, b, fmod=1),
    "rsqrt": lambda graph, x: graph.add("Reciprocal", graph.add("Sqrt", x)),
    "square": lambda graph, x: graph.add("Mul", x, x),
}
"""Functions of a graph and the names of the inputs that return the name of the output.

`expm1` and `log1p` have the absolute error of float32 at 1, not that of small numbers.
"""


def elementwise(graph: Graph, out: Any, inputs: Sequence[Value], make: Callable[..., str]) -> Tensor:
    """Adds nodes that compute a function of elements.

    Args:
        inputs: Values of one shape, or scalars.
        make: Function of the names of the inputs, whose shapes broadcast, that returns the name of the output.
    """
    full, shapes = tuple(out.shape), [_stored(value) for value in inputs if value.shape]
    stored = tuple(1 if all(_is(shape[axis], 1) for shape in shapes) else size for axis, size in enumerate(full))
    return Tensor(make(*map(graph.name, inputs)), full, stored, np.dtype(out.dtype))


def _stored(value: Value) -> Shape:
    return value.stored if isinstance(value, Tensor) else value.shape


def _is(size: Any, number: int) -> bool:
    """Whether a size is a number, and no symbolic dimension."""
    return not jax.export.is_symbolic_dim(size) and size == number


def _of_elements(make: Callable[..., str]) -> Operation:
    """Returns the function of an operation from a function of a graph and names."""
    return lambda graph, out, *inputs, **_: elementwise(graph, out, inputs, functools.partial(make, graph))


@operation(*OPERATORS)
def _operator(graph: Graph, out: Any, *inputs: Value, primitive: str, **_: Any) -> Tensor:
    operator = OF_BOOLS.get(primitive, OPERATORS[primitive]) if out.dtype == bool else OPERATORS[primitive]
    return elementwise(graph, out, inputs, functools.partial(graph.add, operator))


for _name, _make in COMPOSED.items():
    OPERATIONS[_name] = _of_elements(_make)


@operation("and", "or")
def _logical(graph: Graph, out: Any, *inputs: Value, primitive: str, **_: Any) -> Tensor:
    name = primitive.capitalize() if out.dtype == bool else f"Bitwise{primitive.capitalize()}"
    return elementwise(graph, out, inputs, lambda *names: graph.add(name, *names))


@operation("integer_pow")
def _integer_pow(graph: Graph, out: Any, x: Value, *, y: int, **_: Any) -> Tensor:
    return elementwise(graph, out, [x], lambda name: graph.add("Pow", name, graph.constant(y, out.dtype)))


@operation("round")
def _round(graph: Graph, out: Any, x: Value, *, rounding_method: Any, **_: Any) -> Tensor:
    if rounding_method != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise UserError("export: ONNX rounds to even numbers only")
    return elementwise(graph, out, [x], lambda name: graph.add("Round", name))


@operation("select_n")
def _select(graph: Graph, out: Any, which: Value, *cases: Value, **_: Any) -> Tensor:
    if len(cases) != 2 or which.dtype != bool:
        raise UserError("export: a choice among more than two arrays is not supported")
    return elementwise(graph, out, [which, *cases], lambda name, no, yes: graph.add("Where", name, yes, no))


@operation("convert_element_type")
def _convert(graph: Graph, out: Any, x: Value, **_: Any) -> Tensor:
    make = (lambda name: name) if x.dtype == out.dtype else functools.partial(graph.cast, dtype=out.dtype)
    return elementwise(graph, out, [x], make)


@operation("copy", "name", "stop_gradient")
def _same(graph: Graph, out: Any, x: Value, **_: Any) -> Value:
    return x


@operation("optimization_barrier")
def _same_all(graph: Graph, out: Any, *inputs: Value, **_: Any) -> list[Value]:
    return list(inputs)


# Shapes


@operation("dim_as_value")
def _dim_as_value(graph: Graph, out: Any, *, dim: Any, **_: Any) -> Tensor:
    return made(graph.reshaped(graph.cast(graph.size(dim), out.dtype), ()), out)


@operation("iota")
def _iota(graph: Graph, out: Any, *sizes: Value, dimension: int, **_: Any) -> Tensor:
    shape = tuple(out.shape)
    scalar = graph.reshaped(graph.size(shape[dimension]), ())
    numbers = graph.add("Range", graph.constant(0, np.int64), scalar, graph.constant(1, np.int64))
    stored = tuple(size if axis == dimension else 1 for axis, size in enumerate(shape))
    numbers = numbers if len(shape) == 1 else graph.reshaped(numbers, stored)
    return Tensor(graph.cast(numbers, out.dtype), shape, stored, np.dtype(out.dtype))


@operation("broadcast_in_dim")
def _broadcast_in_dim(
    graph: Graph, out: Any, x: Value, *sizes: Value, broadcast_dimensions: Sequence[int], **_: Any
) -> Tensor:
    shape, before = tuple(out.shape), _stored(x)
    stored: list[Any] = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, before, strict=True):
        stored[axis] = size
    name = graph.name(x)
    if tuple(stored) != before:
        axes = [axis for axis in range(len(shape)) if axis not in broadcast_dimensions]
        name = graph.add("Unsqueeze", name, graph.ints(axes))
    return Tensor(name, shape, tuple(stored), np.dtype(out.dtype))


@operation("reshape")
def _reshape(graph: Graph, out: Any, x: Value, *sizes: Value, **_: Any) -> Tensor:
    return made(graph.reshaped(graph.complete(x), out.shape), out)


@operation("squeeze")
def _squeeze(graph: Graph, out: Any, x: Value, *, dimensions: Sequence[int], **_: Any) -> Tensor:
    stored = tuple(size for axis, size in enumerate(_stored(x)) if axis not in dimensions)
    name = graph.add("Squeeze", graph.name(x), graph.ints(dimensions)) if dimensions else graph.name(x)
    return Tensor(name, tuple(out.shape), stored, np.dtype(out.dtype))


@operation("transpose")
def _transpose(graph: Graph, out: Any, x: Value, *, permutation: Sequence[int], **_: Any) -> Tensor:
    stored = tuple(_stored(x)[axis] for axis in permutation)
    return Tensor(_transposed(graph, graph.name(x), permutation), tuple(out.shape), stored, np.dtype(out.dtype))


def _transposed(graph: Graph, name: str, permutation: Sequence[int]) -> str:
    in_order = list(permutation) == list(range(len(permutation)))
    return name if in_order else graph.add("Transpose", name, perm=list(map(int, permutation)))


@operation("concatenate")
def _concatenate(graph: Graph, out: Any, *inputs: Value, dimension: int, **_: Any) -> Tensor:
    return made(graph.add("Concat", *map(graph.complete, inputs), axis=dimension), out)


@operation("stack")
def _stack(graph: Graph, out: Any, *inputs: Value, axis: int, **_: Any) -> Tensor:
    parts = [graph.add("Unsqueeze", graph.complete(value), graph.ints([axis])) for value in inputs]
    return made(graph.add("Concat", *parts, axis=axis), out)


@operation("unstack")
def _unstack(graph: Graph, out: Sequence[Any], x: Value, *, axis: int, **_: Any) -> list[Tensor]:
    name = graph.complete(x)
    names = [graph.add("Gather", name, graph.constant(place, np.int64), axis=axis) for place in range(len(out))]
    return [made(each, one) for each, one in zip(names, out, strict=True)]


@operation("split")
def _split(graph: Graph, out: Sequence[Any], x: Value, *, sizes: Sequence[int], axis: int, **_: Any) -> list[Tensor]:
    if len(out) == 1:
        return [x]  # type: ignore[list-item]
    names = graph.add("Split", graph.complete(x), graph.shape(sizes), axis=axis, outputs=len(out))
    return [made(name, each) for name, each in zip(names, out, strict=True)]


@operation("tile")
def _tile(graph: Graph, out: Any, x: Value, *, reps: Sequence[int], **_: Any) -> Tensor:
    return made(graph.add("Tile", graph.complete(x), graph.shape(reps)), out)


@operation("rev")
def _reverse(graph: Graph, out: Any, x: Value, *, dimensions: Sequence[int], **_: Any) -> Tensor:
    count = len(dimensions)
    least = np.iinfo(np.int64).min
    name = graph.add(
        "Slice", graph.complete(x), graph.ints([-1] * count), graph.ints([least] * count), graph.ints(dimensions),
        graph.ints([-1] * count),
    )  # fmt: skip
    return made(name, out)


@operation("pad")
def _pad(graph: Graph, out: Any, x: Value, fill: Value, *, padding_config: Sequence[Any], **_: Any) -> Tensor:
    name, shape = graph.complete(x), list(x.shape)
    for axis, (_low, _high, inner) in enumerate(padding_config):
        if inner:  # each element is followed by `inner` elements of the fill, except the last one
            name = graph.reshaped(name, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            pads = [0] * (2 * len(shape) + 2)
            pads[len(shape) + 1 + axis + 1] = inner
            name = graph.add("Pad", name, graph.ints(pads), graph.complete(fill))
            shape[axis] *= 1 + inner
            name = graph.reshaped(name, shape)
    pads = [each[0] for each in padding_config]
    pads += [high - inner for _low, high, inner in padding_config]
    if any(not _is(each, 0) for each in pads):
        name = graph.add("Pad", name, graph.shape(pads), graph.complete(fill))
    return made(name, out)


@operation("slice")
def _slice(
    graph: Graph,
    out: Any,
    x: Value,
    *,
    start_indices: Sequence[Any],
    limit_indices: Sequence[Any],
    strides: Sequence[int] | None,
    **_: Any,
) -> Tensor:
    steps = strides or (1,) * len(x.shape)
    axes = [
        axis
        for axis, size in enumerate(x.shape)
        if not (_is(start_indices[axis], 0) and limit_indices[axis] == size and steps[axis] == 1)
    ]
    if not axes:
        return made(graph.complete(x), out)
    first, after = ([limits[axis] for axis in axes] for limits in (start_indices, limit_indices))
    step = [steps[axis] for axis in axes]
    given = graph.shape(first), graph.shape(after), graph.ints(axes), graph.ints(step)
    return made(graph.add("Slice", graph.complete(x), *given), out)


@operation("dynamic_slice")
def _dynamic_slice(graph: Graph, out: Any, x: Value, *starts: Value, slice_sizes: Sequence[Any], **_: Any) -> Tensor:
    name = graph.complete(x)
    for axis, (start, size) in enumerate(zip(starts[: len(x.shape)], slice_sizes, strict=True)):
        if x.shape[axis] != size:
            name = _window(graph, name, _start(graph, start), axis, x.shape[axis], size)
    return made(name, out)


def _window(graph: Graph, name: str, first: str, axis: int, before: Any, size: Any) -> str:
    """Slices `size` elements along an axis of `before` elements; `first` is clamped as in JAX."""
    first = _clamped(graph, first, graph.size(before - size))
    return graph.add("Slice", name, first, graph.add("Add", first, graph.size(size)), graph.ints([axis]))


def _clamped(graph: Graph, index: str, last: str) -> str:
    return graph.add("Max", graph.add("Min", index, last), graph.ints([0]))


def _start(graph: Graph, start: Value) -> str:
    """Returns a scalar index as a tensor `[1]`, int64."""
    return graph.reshaped(graph.cast(graph.complete(start), np.int64), (1,))


@operation("dynamic_update_slice")
def _dynamic_update_slice(graph: Graph, out: Any, x: Value, update: Value, *starts: Value, **_: Any) -> Tensor:
    axes = [axis for axis, size in enumerate(x.shape) if update.shape[axis] != size]
    if not axes:
        return made(graph.complete(update), out)
    if len(axes) > 1:
        raise UserError("export: an update along several axes is not supported")
    axis = axes[0]
    name, size = graph.complete(x), update.shape[axis]
    first = _clamped(graph, _start(graph, starts[axis]), graph.size(x.shape[axis] - size))
    after = graph.add("Add", first, graph.size(size))
    before = graph.add("Slice", name, graph.ints([0]), first, graph.ints([axis]))
    behind = graph.add("Slice", name, after, graph.ints([np.iinfo(np.int64).max]), graph.ints([axis]))
    return made(graph.add("Concat", before, graph.complete(update), behind, axis=axis), out)


# Indices


@operation("gather")
def _gather(
    graph: Graph,
    out: Any,
    x: Value,
    indices: Value,
    *sizes: Value,
    dimension_numbers: Any,
    slice_sizes: Sequence[Any],
    mode: Any,
    fill_value: Any = None,
    **_: Any,
) -> Tensor:
    numbers = dimension_numbers
    indexed, batched = list(numbers.start_index_map), list(numbers.operand_batching_dims)
    whole = [axis for axis in range(len(x.shape)) if axis not in indexed and axis not in batched]
    kept = [axis for axis in indexed if axis not in numbers.collapsed_slice_dims]
    index = graph.cast(graph.complete(indices), np.int64)
    if any(slice_sizes[axis] != x.shape[axis] for axis in whole):
        raise UserError("export: a gather of parts of an axis that is not indexed is not supported")
    limits = graph.shape([x.shape[axis] - 1 for axis in indexed])
    is_filled = mode == lax.GatherScatterMode.FILL_OR_DROP
    value = _fill_value(out.dtype) if fill_value is None else fill_value
    clamped = _clamped(graph, index, limits)
    if len(indices.shape) == 1 and not batched:
        if is_filled and kept:
            raise UserError("export: a slice that may begin outside of an array is not supported")
        name = graph.complete(x)
        for place, axis in enumerate(indexed):
            first = graph.add("Slice", index, graph.ints([place]), graph.ints([place + 1]), graph.ints([0]))
            name = _window(graph, name, first, axis, x.shape[axis], slice_sizes[axis])
        collapsed = list(numbers.collapsed_slice_dims)
        name = graph.add("Squeeze", name, graph.ints(collapsed)) if collapsed else name
        if is_filled:
            inside = graph.cast(graph.add("Equal", index, clamped), np.int32)
            inside = graph.cast(graph.add("ReduceMin", inside, keepdims=0), bool)
            name = graph.add("Where", inside, name, graph.constant(value, out.dtype))
        # The axes of a slice that remain are all axes of the output, in order.
        return made(name, out)
    if any(not _is(slice_sizes[axis], 1) for axis in kept):
        raise UserError("export: a gather of windows is not supported")
    axis_of_indices = len(indices.shape) - 1
    batches = list(numbers.start_indices_batching_dims)
    others = [axis for axis in range(axis_of_indices) if axis not in batches]
    found = clamped
    if batches and batches != list(range(len(batches))):
        found = _transposed(graph, found, [*batches, *others, axis_of_indices])
    # Axes of the result, each with its axis of the indices or of the array.
    of_indices, of_slices = [("index", axis) for axis in (*batches, *others)], [("slice", axis) for axis in whole]
    if not batched and len(indexed) == 1:
        flat = graph.add("Squeeze", found, graph.ints([axis_of_indices]))
        name = graph.add("Gather", graph.complete(x), flat, axis=indexed[0])
        before = sum(axis < indexed[0] for axis in whole)
        order = [*of_slices[:before], *of_indices, *of_slices[before:]]
    else:
        turned = _transposed(graph, graph.complete(x), [*batched, *indexed, *whole])
        name = graph.add("GatherND", turned, found, batch_dims=len(batched))
        order = [*of_indices, *of_slices]
    # The output has the axes of the indices and, at `offset_dims`, the axes of the slices.
    offsets = list(numbers.offset_dims)
    slice_axes = [
        axis for axis in range(len(x.shape)) if axis not in numbers.collapsed_slice_dims and axis not in batched
    ]
    expanded = [offsets[place] for place, axis in enumerate(slice_axes) if axis in kept]
    index_axes, whole_axes = iter(range(axis_of_indices)), iter(whole)
    wanted = [
        ("slice", next(whole_axes)) if axis in offsets else ("index", next(index_axes))
        for axis in range(len(out.shape))
        if axis not in expanded
    ]
    name = _transposed(graph, name, [order.index(each) for each in wanted])
    if expanded:
        name = graph.add("Unsqueeze", name, graph.ints(expanded))
    if is_filled:
        inside = graph.add("Equal", index, clamped)
        inside = graph.cast(graph.add("ReduceMin", graph.cast(inside, np.int32), graph.ints([-1]), keepdims=0), bool)
        inside = graph.add("Unsqueeze", inside, graph.ints(offsets)) if offsets else inside
        name = graph.add("Where", inside, name, graph.constant(value, out.dtype))
    return made(name, out)


def _fill_value(dtype: Any) -> Any:
    """Returns JAX's value for indices that are out of bounds."""
    if np.issubdtype(dtype, np.floating):
        return np.nan
    if np.issubdtype(dtype, np.signedinteger):
        return np.iinfo(dtype).min
    return np.iinfo(dtype).max if np.issubdtype(dtype, np.unsignedinteger) else True


@operation("scatter", "scatter-add")
def _scatter(
    graph: Graph,
    out: Any,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    primitive: str,
    dimension_numbers: Any,
    mode: Any,
    **_: Any,
) -> Tensor:
    numbers = dimension_numbers
    axes = list(numbers.scatter_dims_to_operand_dims)
    if numbers.operand_batching_dims or list(numbers.inserted_window_dims) != sorted(axes):
        raise UserError("export: a scatter of windows or of batches is not supported")
    whole = [axis for axis in range(len(x.shape)) if axis not in axes]
    turned = _transposed(graph, graph.complete(x), [*axes, *whole])
    of_updates = [axis for axis in range(len(updates.shape)) if axis not in numbers.update_window_dims]
    changed = _transposed(graph, graph.complete(updates), [*of_updates, *numbers.update_window_dims])
    limits = [x.shape[axis] - 1 for axis in axes]
    index = graph.cast(graph.complete(indices), np.int64)
    if mode == lax.GatherScatterMode.CLIP:
        index = _clamped(graph, index, graph.shape(limits))
    elif mode == lax.GatherScatterMode.FILL_OR_DROP and not _are_inside(indices, limits):
        raise UserError("export: a scatter to indices that may be out of bounds is not supported")
    name = graph.add("ScatterND", turned, index, changed, reduction="add" if primitive == "scatter-add" else "none")
    return made(_transposed(graph, name, np.argsort([*axes, *whole]).tolist()), out)


def _are_inside(indices: Value, limits: Sequence[Any]) -> bool:
    """Whether indices are constants from 0 to the limits of their axes. Symbolic limits are not compared."""
    if not isinstance(indices, np.ndarray):
        return False
    most = [np.inf if jax.export.is_symbolic_dim(limit) else limit for limit in limits]
    return bool(((indices >= 0) & (indices <= np.asarray(most))).all())


# Sums, maxima and the like

REDUCTIONS = {
    "reduce_and": "ReduceMin", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_or": "ReduceMax",
    "reduce_sum": "ReduceSum",
}  # fmt: skip


@operation(*REDUCTIONS)
def _reduce(graph: Graph, out: Any, x: Value, *, axes: Sequence[int], primitive: str, **_: Any) -> Tensor:
    name = graph.complete(x)
    if not axes:
        return made(name, out)
    name = graph.cast(name, np.int32) if out.dtype == bool else name
    name = graph.add(REDUCTIONS[primitive], name, graph.ints(axes), keepdims=0)
    return made(graph.cast(name, bool) if out.dtype == bool else name, out)


@operation("argmax")
def _argmax(graph: Graph, out: Any, x: Value, *, axes: Sequence[int], **_: Any) -> Tensor:
    name = graph.cast(graph.complete(x), np.int32) if x.dtype == bool else graph.complete(x)
    return made(graph.cast(graph.add("ArgMax", name, axis=axes[0], keepdims=0), out.dtype), out)


@operation("cumsum")
def _cumsum(graph: Graph, out: Any, x: Value, *, axis: int, reverse: bool, **_: Any) -> Tensor:
    name = graph.complete(x)
    name = graph.cast(name, out.dtype) if x.dtype != out.dtype else name
    return made(graph.add("CumSum", name, graph.constant(axis, np.int64), reverse=int(reverse)), out)


# Products of matrices, convolutions and Fourier transforms


@operation("dot_general")
def _dot_general(graph: Graph, out: Any, x: Value, y: Value, *, dimension_numbers: Any, **_: Any) -> Tensor:
    (of_x, of_y), (batch_x, batch_y) = (tuple(map(list, each)) for each in dimension_numbers)
    is_swapped = isinstance(x, np.ndarray) and not batch_x  # quantisation expects constants on the right
    if is_swapped:
        x, y, of_x, of_y = y, x, of_y, of_x
    free_x, free_y = (
        [axis for axis in range(len(value.shape)) if axis not in (*summed, *batch)]
        for value, summed, batch in ((x, of_x, batch_x), (y, of_y, batch_y))
    )
    rows, columns = ([value.shape[axis] for axis in axes] for value, axes in ((x, free_x), (y, free_y)))
    batches, number = [x.shape[axis] for axis in batch_x], math.prod(x.shape[axis] for axis in of_x)
    left = _transposed(graph, graph.complete(x), [*batch_x, *free_x, *of_x])
    if len(of_x) != 1 or (batches and len(rows) != 1):
        left = graph.reshaped(left, [*batches, *([math.prod(rows)] if batches else rows), number])
    if isinstance(y, np.ndarray) and not batches:
        right = graph.constant(np.transpose(y, [*of_y, *free_y]).reshape(number, -1))
    else:
        right = _transposed(graph, graph.complete(y), [*batch_y, *of_y, *free_y])
        if len(of_y) != 1 or len(columns) != 1:
            right = graph.reshaped(right, [*batches, number, math.prod(columns)])
    name = graph.add("MatMul", left, right)
    if len(columns) != 1 or (batches and len(rows) != 1):
        name = graph.reshaped(name, [*batches, *rows, *columns])
    order = [*range(len(rows), len(rows) + len(columns)), *range(len(rows))]
    return made(_transposed(graph, name, order) if is_swapped else name, out)


@operation("conv_general_dilated")
def _convolution(
    graph: Graph,
    out: Any,
    x: Value,
    kernel: Value,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> Tensor:
    if batch_group_count != 1 or any(each != 1 for each in lhs_dilation):
        raise UserError("export: transposed convolutions and groups of rows are not supported")
    name = _transposed(graph, graph.complete(x), dimension_numbers.lhs_spec)
    if isinstance(kernel, np.ndarray):
        filters = graph.constant(np.ascontiguousarray(np.transpose(kernel, dimension_numbers.rhs_spec)))
    else:
        filters = _transposed(graph, graph.complete(kernel), dimension_numbers.rhs_spec)
    pads = [low for low, _high in padding] + [high for _low, high in padding]
    if any(each < 0 for each in pads):  # operators of convolutions cannot remove elements
        count = len(padding)
        name = graph.add(
            "Pad", name, graph.ints([0, 0, *pads[:count], 0, 0, *pads[count:]]), graph.constant(0, x.dtype)
        )
        pads = [0] * len(pads)
    name = graph.add(
        "Conv",
        name,
        filters,
        group=feature_group_count,
        strides=list(window_strides),
        dilations=list(rhs_dilation),
        pads=[int(each) for each in pads],
    )
    return made(_transposed(graph, name, np.argsort(dimension_numbers.out_spec).tolist()), out)


@operation("fft")
def _fft(graph: Graph, out: Any, x: Value, *, fft_type: Any, fft_lengths: Sequence[int], **_: Any) -> "Complex":
    if fft_type != lax.FftType.RFFT or len(fft_lengths) != 1:
        raise UserError("export: only Fourier transforms of real numbers along one axis are supported")
    (length,) = fft_lengths
    turns = np.outer(np.arange(length), np.arange(length // 2 + 1)) % length * (2 * np.pi / length)
    name, shape = graph.complete(x), tuple(out.shape)
    return Complex(
        *(
            Tensor(
                graph.add("MatMul", name, graph.constant(part.astype(np.float32))), shape, shape, np.dtype(np.float32)
            )
            for part in (np.cos(turns), -np.sin(turns))
        )
    )


class Complex(NamedTuple):
    """A complex array: its real and imaginary part."""

    real: Tensor
    imag: Tensor


@operation("real", "imag")
def _part(graph: Graph, out: Any, x: Complex, *, primitive: str, **_: Any) -> Tensor:
    return getattr(x, primitive)
