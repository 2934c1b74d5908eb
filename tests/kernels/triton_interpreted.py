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
from asr_jax.kernels.ctc_sweep.reference import sweep as ctc_sweep
from asr_jax.kernels.lattice_sweep import triton as lattice_sweep_triton
from asr_jax.kernels.lattice_sweep.reference import sweep as lattice_sweep
from asr_jax.kernels.relative_attention import triton as attention_triton
from asr_jax.kernels.transducer_joint import triton as joint_triton
from tests.kernels import joint
from tests.kernels.attention import SCALE, SIZES, made, reference_gradients
from tests.kernels.sweeps import CTC_SIZES, LATTICE_SIZES, RNNT, assert_equal, for_ctc, for_lattices


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
    outputs = [np.full(each.shape, np.nan, each.dtype) for each in out]
    kernel[grid](*given, *map(Tensor, outputs), **constants)
    return tuple(map(jnp.asarray, outputs))


def main() -> None:
    for module in (ctc_sweep_triton, lattice_sweep_triton, attention_triton, joint_triton):
        module.triton_call = interpreted
    for sizes in CTC_SIZES:
        given = for_ctc(*sizes)
        assert_equal(ctc_sweep_triton.sweep(*given), ctc_sweep(*given))
        print(f"ctc_sweep {sizes}: equal")
    for sizes in LATTICE_SIZES:
        given = for_lattices(*sizes, 2)
        assert_equal(lattice_sweep_triton.sweep(*given, *RNNT), lattice_sweep(*given, *RNNT))
        print(f"lattice_sweep {sizes}: equal")
    for sizes in SIZES:
        given = made(sizes)
        expected, cotangent, gradients = reference_gradients(given)
        mixed, kept = attention_triton._forward(*given, SCALE, 16)
        np.testing.assert_allclose(mixed, expected, atol=1e-5)
        found = attention_triton._backward(SCALE, 16, kept, cotangent)
        for one, other in zip(found[:5], gradients, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))
        print(f"relative_attention {sizes}: equal")
    for sizes in joint.SIZES:
        given, activation = joint.made(sizes), sizes[-1]
        expected, cotangents, gradients = joint.reference_gradients(given, activation)
        found, kept = joint_triton._forward(*given, joint.BLANK, activation)
        found = [jnp.where(other == 0, 0, one) for one, other in zip(found, expected, strict=True)]  # padding
        of_given = joint_triton._backward(joint.BLANK, activation, kept, cotangents)[:4]
        for one, other in zip((*found, *of_given), (*expected, *gradients), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max(initial=0)))
        print(f"transducer_joint {sizes}: equal")


if __name__ == "__main__":
    main()
