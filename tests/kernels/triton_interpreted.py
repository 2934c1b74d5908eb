"""Runs a kernel of Triton in Triton's interpreter, on arrays of NumPy: `python -m tests.kernels.triton_interpreted`.

A process of its own, because Triton chooses the interpreter when a kernel is defined.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels.ctc_sweep import triton as ctc_sweep_triton
from asr_jax.kernels.ctc_sweep.reference import sweep
from tests.kernels.test_ctc_sweep import SIZES, assert_equal, drawn


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


def interpreted(*arguments: Any, kernel: Any, out: Any, grid: Any, num_warps: int = 4, **constants: Any) -> Any:
    """Replaces `kernels.triton_calls.triton_call`."""
    given = [Tensor(np.array(each)) if isinstance(each, jax.Array) else each for each in arguments]
    outputs = [np.full(each.shape, np.nan, each.dtype) for each in out]
    kernel[grid](*given, *map(Tensor, outputs), **constants)
    return tuple(map(jnp.asarray, outputs))


def main() -> None:
    ctc_sweep_triton.triton_call = interpreted
    for sizes in SIZES:
        given = drawn(*sizes)
        assert_equal(ctc_sweep_triton.sweep(*given), sweep(*given))
        print(f"ctc_sweep {sizes}: equal")


if __name__ == "__main__":
    main()
