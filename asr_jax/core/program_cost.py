"""Memory, operations, bytes and collectives of a compiled program on one device."""

import time
from dataclasses import dataclass
from typing import Any

from jax.stages import Compiled

from asr_jax.core.hlo import Module, Operation
from asr_jax.core.programs import Program


@dataclass(frozen=True)
class ProgramCost:
    """Cost of one call of a program on one device, according to its compiled text and to XLA's analysis of memory."""

    compile_s: float
    """Processor time of the compiler in seconds."""
    argument_bytes: int
    temporary_bytes: int
    output_bytes: int
    alias_bytes: int
    """Bytes of outputs that share the memory of arguments."""
    flops: float
    """Floating-point operations of products."""
    moved_bytes: int
    """Bytes of main memory that the operations read and write."""
    collectives: dict[str, tuple[int, int]]
    """Number and bytes of each kind of collective."""
    operations: tuple[Operation, ...] = ()
    """Operations of the compiled program."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes: arguments, temporary values and outputs, without those that share memory."""
        return self.argument_bytes + self.temporary_bytes + self.output_bytes - self.alias_bytes

    @property
    def collective_bytes(self) -> int:
        """Bytes of the operands of all collectives on one device."""
        return sum(size for _, size in self.collectives.values())


def compile_and_measure(program: Program, *, num_devices: int) -> tuple[Compiled, ProgramCost]:
    """Compiles a program; returns the executable and its cost."""
    begun_s = time.process_time()
    compiled = program.compile()
    compile_s = time.process_time() - begun_s
    memory: Any = compiled.memory_analysis()
    module = Module(compiled.as_text() or "")
    return compiled, ProgramCost(
        compile_s=round(compile_s, 1),
        argument_bytes=int(memory.argument_size_in_bytes),
        temporary_bytes=int(memory.temp_size_in_bytes),
        output_bytes=int(memory.output_size_in_bytes),
        alias_bytes=int(memory.alias_size_in_bytes),
        flops=program.flops / num_devices,
        moved_bytes=module.bytes,
        collectives=module.collectives(),
        operations=tuple(module.operations),
    )
