"""Conversion of JAX functions to ONNX.

`jax2onnx` 0.17.1 is the maintained converter. It cannot be used here (BUILD_NOTES.md, "Export").
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from onnx import helper

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.exporting.onnx_graph import OPSET, Graph, Tensor, element_type, value_info
from asr_jax.exporting.onnx_operations import OPERATIONS, made

EXACT_FUNCTIONS = ("front_end", "strided_conv")
"""Names of the jitted functions whose constants stay in float32 in f16 and int8 files: front-ends, and the convolutions
of wav2vec 2.0's extractor. With the convolutions in int8, a model's error rate rose from 2.9 to 8.4 %."""
MOST_BYTES = 2**31 - 2**20
"""Largest size of the constants of a file."""
LONGEST_UNROLLED = 64
"""Largest number of iterations of a loop that is written out. Longer loops become loops in the graph."""


def to_onnx(
    function: Callable[..., Any],
    arguments: Mapping[str, jax.ShapeDtypeStruct],
    *,
    outputs: Sequence[str],
    integers: Any = np.int64,
) -> onnx.ModelProto:
    """Converts a function to an ONNX model.

    Args:
        function: Function of keyword arguments that returns one array or a pytree of arrays. Arrays that it uses
            otherwise, such as parameters, become constants of the model.
        arguments: Name, shape and dtype of each input. Sizes may be symbolic dimensions of `jax.export`.
        outputs: Name of each output, in the order of the leaves.
        integers: Type of the integers that the model takes and returns.

    Raises:
        UserError: If the function has an operation that cannot be converted.
    """
    names = list(arguments)
    with jax.default_matmul_precision("highest"):
        closed, shapes = jax.make_jaxpr(
            lambda *args: function(**dict(zip(names, args, strict=True))), return_shape=True
        )(*arguments.values())
    if len(leaves := list(flatten(shapes).values())) != len(outputs):
        raise ValueError(f"{len(outputs)} names of outputs for {len(leaves)} outputs")
    graph = Graph()
    types = {np.dtype(np.int32): np.dtype(integers)}
    inputs = [_input(graph, name, arguments[name], types) for name in names]
    found = Converter(graph).run(closed.jaxpr, [np.asarray(each) for each in closed.consts], inputs)
    if (size := sum(len(constant.raw_data) for constant in graph.constants.values())) > MOST_BYTES:
        raise UserError(f"the model has {size / 1e9:.1f} GB, and ONNX files have at most 2 GB: use --to stablehlo")
    for name, value in zip(outputs, found, strict=True):
        dtype = types.get(value.dtype, value.dtype)
        graph.nodes.append(helper.make_node("Cast", [graph.complete(value)], [name], to=element_type(dtype)))
    proto = helper.make_graph(
        graph.nodes,
        "asr_jax",
        [value_info(name, types.get(each.dtype, each.dtype), each.shape) for name, each in arguments.items()],
        [value_info(n, types.get(each.dtype, each.dtype), each.shape) for n, each in zip(outputs, leaves, strict=True)],
        list(graph.constants.values()),
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="asr_jax")
    model.ir_version = 8
    return model


def _input(graph: Graph, name: str, given: jax.ShapeDtypeStruct, types: Mapping[Any, Any]) -> Tensor:
    """Returns an input, whose symbolic sizes the graph then knows."""
    for axis, size in enumerate(given.shape):
        if jax.export.is_symbolic_dim(size) and str(size) not in graph.sizes:
            graph.sizes[str(size)] = graph.add("Shape", name, start=axis, end=axis + 1)
    inner = graph.cast(name, given.dtype) if given.dtype in types else graph.add("Identity", name)
    return Tensor(inner, tuple(given.shape), tuple(given.shape), np.dtype(given.dtype))


class Converter:
    """Adds the operations of a program to a graph. Operations on constants are computed instead."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Adds a program and returns its outputs."""
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))

        def read(variable: Any) -> Any:
            if not isinstance(variable, Literal):
                return values[variable]
            kind: Any = variable.aval
            return np.asarray(variable.val, kind.dtype)

        for equation in jaxpr.eqns:
            found = self.equation(equation, [read(variable) for variable in equation.invars])
            values.update(zip(equation.outvars, found, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Adds one operation and returns its outputs."""
        name, parameters = equation.primitive.name, equation.params
        inner = self._inner(equation, inputs)
        if inner is not None:
            return inner
        outputs = [variable.aval for variable in equation.outvars]
        if all(isinstance(each, np.ndarray) for each in inputs) and not _is_symbolic(outputs, parameters):
            with jax.ensure_compile_time_eval():
                found = equation.primitive.bind(*inputs, **parameters)
            return [np.asarray(each) for each in (found if equation.primitive.multiple_results else [found])]
        if name not in OPERATIONS:
            raise UserError(f"export: JAX's operation {name} has no counterpart in ONNX here: report this as a bug")
        out = outputs if equation.primitive.multiple_results else outputs[0]
        found = OPERATIONS[name](self.graph, out, *inputs, **{**parameters, "primitive": name})
        return list(found) if equation.primitive.multiple_results else [found]

    def _inner(self, equation: Any, inputs: list[Any]) -> list[Any] | None:
        """Adds an operation that contains programs; None if it contains none."""
        name, parameters = equation.primitive.name, equation.params
        if name == "scan":
            return self._scan(equation, inputs)
        if name == "cond":
            which, *operands = inputs
            if not isinstance(which, np.ndarray):
                raise UserError("export: a branch that depends on inputs is not supported")
            return self.program(parameters["branches"][int(which)], operands)
        if name == "platform_index":  # the last program is the one for platforms without their own
            return [np.asarray(len(parameters["platforms"]) - 1, np.int32)]
        program = parameters.get("jaxpr", parameters.get("call_jaxpr"))
        if program is None:
            return None
        before = self.graph.is_exact
        self.graph.is_exact = before or parameters.get("name") in EXACT_FUNCTIONS
        found = self.program(program, inputs)
        self.graph.is_exact = before
        return found

    def program(self, program: ClosedJaxpr | Jaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Adds a program with or without constants of its own."""
        if isinstance(program, ClosedJaxpr):
            return self.run(program.jaxpr, [np.asarray(each) for each in program.consts], inputs)
        return self.run(program, [], inputs)

    def _scan(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Writes out a short loop, and adds ONNX's Scan for others."""
        program, length, is_reverse = (equation.params[name] for name in ("jaxpr", "length", "reverse"))
        inner = getattr(program, "jaxpr", program)
        # The arrays that the loop goes over, and those that it collects, have one axis more outside of it.
        num_sequences = _num_longer(equation.invars, inner.invars)
        num_carry = len(equation.outvars) - _num_longer(equation.outvars, inner.outvars)
        num_consts = len(inputs) - num_carry - num_sequences
        consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
        sequences = inputs[num_consts + num_carry :]
        if jax.export.is_symbolic_dim(length) or length > LONGEST_UNROLLED:
            return self._loop(equation, consts, carry, sequences)
        collected: list[list[Any]] = []
        places = range(length)
        for place in reversed(places) if is_reverse else places:
            found = self.program(program, [*consts, *carry, *(self._element(each, place) for each in sequences)])
            carry = found[:num_carry]
            collected.append(found[num_carry:])
        if is_reverse:
            collected.reverse()
        return [*carry, *(self._stacked(list(each)) for each in zip(*collected, strict=True))]

    def _element(self, value: Any, place: int) -> Any:
        if isinstance(value, np.ndarray):
            return value[place]
        name = self.graph.add("Gather", self.graph.complete(value), self.graph.constant(place, np.int64), axis=0)
        return Tensor(name, value.shape[1:], value.shape[1:], value.dtype)

    def _stacked(self, values: list[Any]) -> Any:
        if all(isinstance(each, np.ndarray) for each in values):
            return np.stack(values)
        graph, shape = self.graph, (len(values), *values[0].shape)
        parts = [graph.add("Unsqueeze", graph.complete(each), graph.ints([0])) for each in values]
        return Tensor(graph.add("Concat", *parts, axis=0), shape, shape, values[0].dtype)

    def _loop(self, equation: Any, consts: list[Any], carry: list[Any], sequences: list[Any]) -> list[Any]:
        """Adds ONNX's Scan."""
        if not sequences:
            raise UserError("export: a long loop over no arrays is not supported: report this as a bug")
        graph, program = self.graph, equation.params["jaxpr"]
        inner, body = getattr(program, "jaxpr", program), graph.body()
        of_body = [made(body.new_name("input"), each.aval) for each in inner.invars[len(consts) :]]
        found = Converter(body).program(program, [*consts, *of_body])
        results = [body.add("Identity", body.complete(each)) for each in found]
        outputs = [made(name, each.aval) for name, each in zip(results, inner.outvars, strict=True)]
        proto = helper.make_graph(
            body.nodes,
            body.new_name("body"),
            [value_info(each.name, each.dtype, each.shape) for each in of_body],
            [value_info(each.name, each.dtype, each.shape) for each in outputs],
        )
        direction = int(equation.params["reverse"])
        names = graph.add(
            "Scan",
            *map(graph.complete, [*carry, *sequences]),
            outputs=len(found),
            body=proto,
            num_scan_inputs=len(sequences),
            scan_input_directions=[direction] * len(sequences),
            scan_output_directions=[direction] * (len(found) - len(carry)) or None,
        )
        names = [names] if isinstance(names, str) else names
        return [made(name, each.aval) for name, each in zip(names, equation.outvars, strict=True)]


def _num_longer(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Counts the arrays of a loop that have one axis more outside of it."""
    return sum(len(a.aval.shape) > len(b.aval.shape) for a, b in zip(outside, inside, strict=True))


def _is_symbolic(outputs: Sequence[Any], parameters: Any) -> bool:
    """Whether a shape or a parameter has symbolic sizes."""
    if any(jax.export.is_symbolic_dim(size) for out in outputs for size in out.shape):
        return True
    return any(jax.export.is_symbolic_dim(leaf) for leaf in jax.tree.leaves(list(parameters.values())))
