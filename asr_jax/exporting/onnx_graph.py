"""Builder of ONNX graphs: names of values, constants, nodes, and sizes that are known only when the graph runs."""

import ast
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import onnx
from onnx import helper, numpy_helper

from asr_jax.core.errors import UserError

OPSET = 18
"""Version of ONNX's operators. onnxruntime 1.14 and later run it."""
EXACT = "exact"
"""Documentation of the nodes whose constants are neither quantised nor rounded."""
Shape = tuple[Any, ...]
"""Sizes of the axes of an array: ints, or symbolic dimensions of `jax.export`."""


@dataclass(frozen=True)
class Tensor:
    """An array that the graph computes."""

    name: str
    shape: Shape
    """Shape of the array in JAX."""
    stored: Shape
    """Shape of the tensor in the graph: 1 on axes along which the tensor is yet to be repeated."""
    dtype: np.dtype

    @property
    def is_complete(self) -> bool:
        """Whether the tensor has the shape of the array."""
        return self.shape == self.stored


Value = Tensor | np.ndarray
"""An array that the graph computes, or a constant."""


@dataclass
class Graph:
    """An ONNX graph that is being built, or a body of a loop in one.

    A body uses the values of the graph around it (`outer`), whose constants it shares.
    """

    outer: "Graph | None" = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    """Names of the tensors `[1]`, int64, with the values of symbolic sizes, by their expressions."""
    is_exact: bool = False
    """Whether added nodes belong to a front-end."""
    _count: list[int] = field(default_factory=lambda: [0])
    _known: dict[Any, str] = field(default_factory=dict)

    def body(self) -> "Graph":
        """Returns a graph for the body of a loop in this graph."""
        return Graph(outer=self, sizes=dict(self.sizes), is_exact=self.is_exact, _count=self._count)

    def new_name(self, base: str) -> str:
        self._count[0] += 1
        return f"{base}_{self._count[0]}"

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node and returns the name of its output, or a list of names for several outputs."""
        names = [self.new_name(operator) for _ in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        about = EXACT if self.is_exact else None
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=names[0], doc_string=about, **given))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Returns the name of a constant. Equal constants have one name."""
        if self.outer:
            return self.outer.constant(value, dtype)
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._known:
            name = self.new_name("constant")
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            self._known[key] = name
        return self._known[key]

    def ints(self, values: Iterable[int]) -> str:
        """Returns the name of a constant of int64 numbers."""
        return self.constant(np.asarray(list(values), np.int64))

    def size(self, size: Any) -> str:
        """Returns the name of a tensor `[1]`, int64, with the value of a size."""
        if not jax.export.is_symbolic_dim(size):
            return self.ints([size])
        text = str(size)
        if text not in self.sizes:
            self.sizes[text] = self._computed(ast.parse(text.replace("^", "**"), mode="eval").body)
        return self.sizes[text]

    def shape(self, shape: Sequence[Any]) -> str:
        """Returns the name of a tensor, int64, with the values of a shape."""
        if not any(map(jax.export.is_symbolic_dim, shape)):
            return self.ints(shape)
        return self.add("Concat", *map(self.size, shape), axis=0) if len(shape) > 1 else self.size(shape[0])

    def _computed(self, node: ast.expr) -> str:
        """Adds the nodes that compute an expression of sizes, as JAX prints it."""
        text = ast.unparse(node)
        if text in self.sizes:
            return self.sizes[text]
        match node:
            case ast.Constant(value=value):
                return self.ints([value])  # type: ignore[list-item]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self.add("Neg", self._computed(operand))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=power)):
                found = base = self._computed(left)
                for _ in range(int(power) - 1):  # type: ignore[arg-type]
                    found = self.add("Mul", found, base)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
                operator = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}[type(op)]
                found = self.add(operator, self._computed(left), self._computed(right))
            case ast.Call(func=ast.Name(id="floordiv"), args=[number, divisor]):
                first, second = self._computed(number), self._computed(divisor)
                rest = self.add("Mod", first, second)  # with the sign of the divisor, as in Python
                found = self.add("Div", self.add("Sub", first, rest), second)
            case ast.Call(func=ast.Name(id="mod" | "max" | "min" as function), args=arguments):
                found = self.add(function.capitalize(), *map(self._computed, arguments))
            case _:
                raise UserError(f"export: the size {text} cannot be computed by ONNX: report this as a bug")
        self.sizes[text] = found
        return found

    # Values

    def name(self, value: Value) -> str:
        """Returns the name of a tensor of the stored shape."""
        return value.name if isinstance(value, Tensor) else self.constant(value)

    def complete(self, value: Value) -> str:
        """Returns the name of a tensor of the full shape."""
        if isinstance(value, np.ndarray) or value.is_complete:
            return self.name(value)
        return self.add("Expand", value.name, self.shape(value.shape))

    def reshaped(self, name: str, shape: Sequence[Any]) -> str:
        """Reshapes a tensor."""
        symbolic = [place for place, size in enumerate(shape) if jax.export.is_symbolic_dim(size)]
        if len(symbolic) == 1 and 0 not in shape:
            return self.add("Reshape", name, self.ints(-1 if place in symbolic else n for place, n in enumerate(shape)))
        return self.add("Reshape", name, self.shape(shape))

    def cast(self, name: str, dtype: Any) -> str:
        """Converts a tensor to a dtype."""
        return self.add("Cast", name, to=element_type(dtype))


def element_type(dtype: Any) -> int:
    """Returns ONNX's number of a dtype."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def value_info(name: str, dtype: Any, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    """Returns the description of an input or an output. Symbolic sizes are names."""
    sizes = [str(size) if jax.export.is_symbolic_dim(size) else int(size) for size in shape]
    return helper.make_tensor_value_info(name, element_type(dtype), sizes)
