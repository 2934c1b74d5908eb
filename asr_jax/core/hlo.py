"""Reads the text of a compiled program (HLO): its operations, with bytes, floating-point operations and collectives.

The analyses of XLA count the body of a loop once, and on GPUs they are empty. Here an operation counts as often as its
loops run, and of a conditional only one branch counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "add-dependency",
    "opt-barrier",
    "domain",
    "iota",
)
"""Opcodes that read and write no memory."""
RUNS = ("while", "conditional", "call")
"""Opcodes whose computations run as operations of their own."""
SLICES = ("dynamic-slice", "slice", "gather")
"""Opcodes that read as many bytes as they write."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_TIMES = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(
    r"\b(?:calls|body|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|\S+)"
)
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


class ArrayShape(NamedTuple):
    """Type and shape of an array in a compiled program."""

    dtype: str
    dims: tuple[int, ...]
    in_main_memory: bool = True
    """Whether the array is in the device's main memory, and not in a memory space of the chip such as VMEM."""

    @property
    def bits(self) -> int:
        """Bits of a value: the first number in the name of the type, such as f8e4m3fn."""
        number = re.search(r"\d+", self.dtype)
        return int(number[0]) if number else 8  # of pred

    @property
    def num_bytes(self) -> int:
        return -(-prod(self.dims) * self.bits // 8)


@dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    opcode: str
    outputs: tuple[ArrayShape, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    """Names of the computations that it calls."""
    rest: str
    """Attributes, as text."""
    is_root: bool

    @property
    def kind(self) -> str:
        """The opcode without the suffix of an asynchronous start, or the target of a custom call."""
        if self.opcode == "custom-call":
            found = _TARGET.search(self.rest)
            return found[1] if found else self.opcode
        return self.opcode.removesuffix("-start")

    @property
    def op_name(self) -> str:
        """Path of JAX functions that the instruction comes from; empty if the compiler made it."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def output_bytes(self) -> int:
        return sum(array.num_bytes for array in self.outputs)


class Operation(NamedTuple):
    """An operation that the device executes: a fusion, a product, a copy, a collective."""

    name: str
    kind: str
    op_name: str
    shape: str
    times: int
    """Number of executions in a call of the program."""
    bytes: int
    """Bytes of main memory that one execution reads and writes."""
    flops: float
    """Floating-point operations of products and convolutions of one execution."""
    flops_16bit: float
    """The part of `flops` whose operands have at most 16 bits."""
    operand_bytes: int
    """Bytes of the operands, in any memory."""


class Module:
    """The computations of a compiled program."""

    def __init__(self, text: str) -> None:
        """Reads the text of `jax.stages.Compiled.as_text`."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.split("\n"):
            if line.endswith("{") and (found := _COMPUTATION.match(line)):
                current = self.computations[found[2]] = {}
                self.entry = found[2] if found[1] else self.entry
            elif found := _INSTRUCTION.match(line):
                current[found[2]] = _instruction(found[2], found[3], is_root=bool(found[1]))

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """All operations, with the bodies of loops and the branch of each conditional that moves the most bytes."""
        return tuple(self._run(self.entry, 1))

    def _run(self, name: str, times: int) -> Iterator[Operation]:
        computation = self.computations[name]
        for each in computation.values():
            if each.opcode in RUNS:
                parts = [list(self._run(called, times * self._runs(each))) for called in each.called]
                if each.opcode == "conditional":  # one branch runs
                    parts = [max(parts, key=lambda branch: sum(one.times * one.bytes for one in branch))]
                for part in parts:
                    yield from part
            elif each.opcode not in FREE and not each.opcode.endswith("-done"):
                shape = ", ".join(_shown(array) for array in each.outputs)
                products = list(self._products(each, computation))
                yield Operation(
                    each.name,
                    self._collective(each) or each.kind,
                    each.op_name,
                    shape,
                    times,
                    self._bytes(each, computation),
                    sum(flops for _, flops in products),
                    sum(flops for bits, flops in products if bits <= 16),
                    sum(computation[operand].output_bytes for operand in each.operands if operand in computation),
                )

    def _bytes(self, each: Instruction, computation: Mapping[str, Instruction]) -> int:
        # The output of a start has its operands and the result.
        outputs = each.outputs[len(each.operands) :] if each.opcode.endswith("-start") else each.outputs
        if each.kind.startswith("__cu"):  # scratch memory of cuBLAS and cuDNN, which may stay unused
            outputs = tuple(array for array in outputs if array.dtype not in ("s8", "u8") or len(array.dims) != 1)
        written = sum(array.num_bytes for array in outputs if array.in_main_memory)
        if each.opcode in SLICES:
            return 2 * written
        if each.opcode == "dynamic-update-slice":
            return 2 * sum(array.num_bytes for array in computation[each.operands[1]].outputs)
        inside = self.computations.get(each.called[0], {}) if each.kind == "fusion" and each.called else {}
        parameters = {int(one.rest): one for one in inside.values() if one.opcode == "parameter"}
        read = 0
        for number, operand in enumerate(each.operands):
            arrays = computation[operand].outputs if operand in computation else ()
            whole = sum(array.num_bytes for array in arrays if array.in_main_memory)
            part = _part_read(parameters[number], inside) if number in parameters else None
            read += whole if part is None else min(part, whole)
        for one in inside.values():
            if one.is_root:
                written = min(written, _part_written(one, inside))
        return read + written

    def _products(self, each: Instruction, computation: Mapping[str, Instruction]) -> Iterator[tuple[int, float]]:
        """Yields the bits of the widest operand and the floating-point operations of each product."""
        is_product = each.opcode in ("dot", "convolution")
        if is_product or each.opcode == "custom-call":
            flops = (_product_flops if is_product else _custom_flops)(each, computation)
            if flops:
                operands = [array for name in each.operands[:2] for array in computation[name].outputs]
                yield max((array.bits for array in operands), default=64), flops
        for called in each.called if each.kind in ("fusion", "async") else ():
            inside = self.computations.get(called, {})
            for one in inside.values():
                yield from self._products(one, inside)

    def collectives(self) -> dict[str, tuple[int, int]]:
        """Number of executions of each kind of collective in a call, and bytes of its operands on one device."""
        found = dict[str, tuple[int, int]]()
        for each in self.operations:
            if each.kind in COLLECTIVES:
                number, total = found.get(each.kind, (0, 0))
                found[each.kind] = number + each.times, total + each.times * each.operand_bytes
        return found

    def _collective(self, each: Instruction) -> str:
        """Kind of the collective that an instruction is or contains; empty if there is none."""
        if each.kind in COLLECTIVES:
            return each.kind
        inside = (one for called in each.called for one in self.computations.get(called, {}).values())
        return next((one.kind for one in inside if one.kind in COLLECTIVES), "")

    def _runs(self, each: Instruction) -> int:
        """Number of times that the computations of a loop run; 1 if it depends on values, or if it is no loop."""
        if each.opcode != "while":
            return 1
        if found := _TIMES.search(each.rest):
            return int(found[1])
        # The counter of JAX's loops starts at 0, and the condition compares it with the number of iterations.
        name = _CONDITION.search(each.rest)
        condition = self.computations.get(name[1], {}) if name else {}
        root = next((one for one in condition.values() if one.is_root), None)
        if root is None or root.opcode != "compare" or "direction=LT" not in root.rest:
            return 1
        constant = condition.get(root.operands[1])
        return int(constant.rest) if constant and constant.opcode == "constant" and constant.rest.isdigit() else 1

    @property
    def bytes(self) -> int:
        """Bytes of main memory that a call reads and writes, operation by operation."""
        return sum(each.times * each.bytes for each in self.operations)


def largest(operations: Sequence[Operation], by: str, number: int = 10) -> list[Operation]:
    """Operations with the most `by` (`bytes` or `flops`) in a call."""
    return sorted(operations, key=lambda each: -each.times * getattr(each, by))[:number]


def _instruction(name: str, line: str, *, is_root: bool) -> Instruction:
    found = _OPCODE.search(" " + line)
    if not found:
        raise ValueError(f"{line[:100]!r} is no instruction of HLO")
    start = found.end() - 1  # of the text after the parenthesis
    depth, end = 1, start
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    inputs, rest = line[start : end - 1], line[end:]
    is_literal = found[1] in ("parameter", "constant")
    called = tuple(one for group in _CALLED.findall(rest) for one in _NAME.findall(group))
    return Instruction(
        name,
        found[1],
        tuple(_arrays(line[: found.start()])),
        () if is_literal else tuple(_NAME.findall(inputs)),
        called if found[1] not in ("reduce", "reduce-window", "sort", "scatter", "all-reduce", "map") else (),
        inputs if is_literal else rest,
        is_root,
    )


def _arrays(shape: str) -> Iterator[ArrayShape]:
    for dtype, dims, layout in _ARRAY.findall(shape):
        yield ArrayShape(dtype, tuple(int(each) for each in dims.split(",") if each), "S(1)" not in layout)


def _shown(array: ArrayShape) -> str:
    return f"{array.dtype}[{','.join(map(str, array.dims))}]"


def _part_read(parameter: Instruction, inside: Mapping[str, Instruction]) -> int | None:
    """Bytes that a fusion reads of a parameter if all its uses are slices; otherwise None."""
    users = [each for each in inside.values() if parameter.name in each.operands]
    total = 0
    for each in users:
        if each.opcode in SLICES and each.operands[0] == parameter.name:
            total += each.output_bytes
        elif each.opcode == "dynamic-update-slice" and each.operands[0] == parameter.name:
            continue  # the values that stay are not read
        elif each.opcode == "bitcast":
            part = _part_read(each, inside)
            if part is None:
                return None
            total += part
        else:
            return None
    return total if users else 0


def _part_written(root: Instruction, inside: Mapping[str, Instruction]) -> int:
    """Bytes that a fusion writes, without the values of updated arrays that stay."""
    if root.opcode == "tuple":
        return sum(_part_written(inside[operand], inside) for operand in root.operands)
    if root.opcode == "bitcast" and root.operands[0] in inside:
        return min(root.output_bytes, _part_written(inside[root.operands[0]], inside))
    if root.opcode == "dynamic-update-slice":
        return inside[root.operands[1]].output_bytes
    return root.output_bytes


def _product_flops(each: Instruction, computation: Mapping[str, Instruction]) -> float:
    left, right = (computation[operand].outputs[0].dims for operand in each.operands[:2])
    out = each.outputs[0].dims
    if each.opcode == "dot":
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.rest)
        return 2.0 * prod(out) * prod(left[int(axis)] for axis in _numbers(found))
    spread = _numbers(re.search(r"lhs_dilate=([\dx]+)", each.rest))
    return _convolution_flops(each, result=out, kernel=right) / prod(spread) * _share_of_taps(each, left)


def _custom_flops(each: Instruction, computation: Mapping[str, Instruction]) -> float:
    """Returns the floating-point operations of a call of cuBLAS or cuDNN; 0 for other custom calls."""
    if each.kind.startswith("__cudnn$conv"):
        left, right = (computation[operand].outputs[0].dims for operand in each.operands[:2])
        out = each.outputs[0].dims
        if each.kind == "__cudnn$convBackwardInput":
            return _convolution_flops(each, result=left, kernel=right)
        if each.kind == "__cudnn$convBackwardFilter":
            return _convolution_flops(each, result=right, kernel=out)
        return _convolution_flops(each, result=out, kernel=right)
    if "gemm" not in each.kind and "matmul" not in each.kind:
        return 0.0
    left = computation[each.operands[0]].outputs[0].dims
    found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', each.rest)
    return 2.0 * prod(each.outputs[0].dims) * prod(left[axis] for axis in _numbers(found))


def _convolution_flops(each: Instruction, *, result: Sequence[int], kernel: Sequence[int]) -> float:
    """Each value of the result of a convolution is a sum over the kernel's taps and input channels."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", each.rest)
    return 2.0 * prod(result) * prod(kernel) / (kernel[labels[1].index("o")] if labels else 1)


def _share_of_taps(each: Instruction, inputs: Sequence[int]) -> float:
    """Share of a convolution's taps that can meet an input, since windows may be larger than all inputs.

    Compilers for TPUs write products with several axes as such convolutions, whose other taps only meet padding.
    """
    sizes = _numbers(re.search(r"size=([\dx]+)", each.rest))
    labels = re.search(r"dim_labels=(\w+?)_", each.rest)
    if not labels:
        return 1.0
    lengths = [inputs[labels[1].index(str(axis))] for axis in range(len(sizes))]
    spread = _numbers(re.search(r"lhs_dilate=([\dx]+)", each.rest)) or [1] * len(sizes)
    spans = [(length - 1) * between + 1 for length, between in zip(lengths, spread, strict=True)]
    return prod(min(size, span) / size for size, span in zip(sizes, spans, strict=True))


def _numbers(found: re.Match[str] | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []
