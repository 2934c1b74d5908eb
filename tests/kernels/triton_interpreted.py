"""Runs a kernel of Triton in Triton's interpreter, on arrays of NumPy: `python -m tests.kernels.triton_interpreted`.

A process of its own, because Triton chooses the interpreter when a kernel is defined.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import elementwise_triton, implementations
from tests.kernels.triton_compared import COMPARED, kernel_of


class Tensor:
    """An array with the members of `torch.Tensor` that the interpreter uses."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, str(array.dtype)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> "Tensor":
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def new_empty(self, *size: Any, **options: Any) -> "Tensor":
        return self

    def set_(self, *storage: Any) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def copy_(self, other: "Tensor") -> None:
        """Does nothing: both share their memory."""


def interpreted(*arguments: Any, kernel: Any, out: Any, grid: Any, **constants: Any) -> Any:
    """Replaces `kernels.triton_calls.triton_call`."""
    constants = {name: value for name, value in constants.items() if name not in ("num_warps", "num_stages")}
    given = [Tensor(np.array(each)) if isinstance(each, jax.Array) else each for each in arguments]
    outputs = [
        np.full(each.shape, np.iinfo(each.dtype).max if each.dtype.kind in "iu" else np.nan, each.dtype) for each in out
    ]
    kernel[grid](*given, *map(Tensor, outputs), **constants)
    return tuple(map(jnp.asarray, outputs))


def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    """Multiplies matrices. Triton's interpreter multiplies the bits of bfloat16 as integers."""
    wide = (builder.create_fp_ext(each, tl.float32) if each.dtype.scalar == tl.bfloat16 else each for each in (a, b))
    return multiply(builder, *wide, *rest)


multiply = InterpreterBuilder.create_dot
InterpreterBuilder.create_dot = dot


def interpret() -> None:
    """Interprets all kernels from now on, with small blocks."""
    for module in (*map(kernel_of, COMPARED), elementwise_triton):
        if hasattr(module, "triton_call"):
            module.triton_call = interpreted
    implementations.traced_for = lambda: TracedFor("gpu", 1)
    elementwise_triton.BLOCK = kernel_of("pairwise_downsample").BLOCK = 64


def main() -> None:
    interpret()
    for name, compared in COMPARED.items():
        for sizes in compared.sizes:
            compared.compare(sizes)
            print(f"{name} {sizes}: equal")


if __name__ == "__main__":
    main()
