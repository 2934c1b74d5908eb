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
from asr_jax.kernels.bias_norm import triton as bias_norm_triton
from asr_jax.kernels.ctc_sweep import triton as ctc_sweep_triton
from asr_jax.kernels.ctc_sweep.reference import sweep as ctc_sweep
from asr_jax.kernels.ctc_viterbi import reference as ctc_viterbi
from asr_jax.kernels.ctc_viterbi import triton as ctc_viterbi_triton
from asr_jax.kernels.depthwise_conv import triton as depthwise_conv_triton
from asr_jax.kernels.lattice_sweep import triton as lattice_sweep_triton
from asr_jax.kernels.lattice_sweep.reference import sweep as lattice_sweep
from asr_jax.kernels.masked_batch_norm import triton as batch_norm_triton
from asr_jax.kernels.pairwise_downsample import triton as downsample_triton
from asr_jax.kernels.relative_attention import triton as attention_triton
from asr_jax.kernels.transducer_joint import triton as joint_triton
from tests.kernels import joint
from tests.kernels.attention import SCALE, SIZES, made, reference_gradients
from tests.kernels.convolutions import KERNEL_CASES, for_kernels
from tests.kernels.norms import NORM_SIZES, batch_norm_expected, batch_norm_parts, bias_norm_expected, for_norms
from tests.kernels.paths import PATH_SIZES, for_paths
from tests.kernels.small import SIZES as SMALL_SIZES
from tests.kernels.small import assert_close, cases, computed
from tests.kernels.sweeps import CTC_SIZES, LATTICE_SIZES, RNNT, assert_equal, for_ctc, for_lattices

PRECISIONS = ("float32", 1e-5), ("bfloat16", 2e-2)
"""Dtypes of the inputs, and differences from the reference relative to its largest magnitude."""


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


def main() -> None:
    for module in (
        ctc_sweep_triton, lattice_sweep_triton, attention_triton, elementwise_triton, downsample_triton
    ):  # fmt: skip
        module.triton_call = interpreted
    implementations.traced_for = lambda: TracedFor("gpu", 1)
    elementwise_triton.BLOCK = downsample_triton.BLOCK = 64
    for sizes in CTC_SIZES:
        given = for_ctc(*sizes)
        assert_equal(ctc_sweep_triton.sweep(*given), ctc_sweep(*given))
        print(f"ctc_sweep {sizes}: equal")
    for sizes in LATTICE_SIZES:
        given = for_lattices(*sizes, 2)
        assert_equal(lattice_sweep_triton.sweep(*given, *RNNT), lattice_sweep(*given, *RNNT))
        print(f"lattice_sweep {sizes}: equal")
    attentions()
    for sizes in SMALL_SIZES[::2]:
        for name, case in cases(sizes).items():
            for dtype in ("float32", "bfloat16"):
                low = case._replace(arrays=tuple(each.astype(dtype).astype(jnp.float32) for each in case.arrays))
                assert_close(computed(low, "triton", dtype), computed(low, "reference"), jnp.dtype(dtype))
            print(f"{name} {sizes}: equal")
    depthwise_convs()
    paths()
    norms()
    joints()


def attentions() -> None:
    for sizes in SIZES:
        for dtype, tolerance in PRECISIONS:
            low = in_precision(made(sizes), dtype)
            expected, cotangent, gradients = reference_gradients(in_precision(low, "float32"))
            mixed, kept = attention_triton._forward(*low, SCALE, 0)
            found = attention_triton._backward(SCALE, 0, kept, cotangent.astype(dtype))
            assert_near((mixed, *found[:5]), (expected, *gradients), tolerance)
            print(f"relative_attention {sizes} {dtype}: equal")


def in_precision(given: Any, dtype: str) -> list[jax.Array]:
    """Converts the arrays that are not integers."""
    return [each.astype(dtype) if jnp.issubdtype(each.dtype, jnp.floating) else each for each in given]


def depthwise_convs() -> None:
    depthwise_conv_triton.triton_call = interpreted
    for rows, frames, width, taps, padding, stride, dilation in KERNEL_CASES:
        given, expected = for_kernels(rows, frames, width, taps, padding, stride, dilation)
        steps = {"padding": padding, "stride": stride, "dilation": dilation}
        for dtype, tolerance in PRECISIONS:
            x, kernel, dy = (each.astype(dtype) for each in given)
            y = depthwise_conv_triton.conv(x, kernel, **steps)
            assert_near((y, *depthwise_conv_triton.gradients(x, kernel, dy, **steps)), expected, tolerance)
            print(f"depthwise_conv {x.shape} {steps} {dtype}: equal")


def paths() -> None:
    ctc_viterbi_triton.triton_call = interpreted
    for sizes in PATH_SIZES:
        given = for_paths(*sizes)
        expected, found = (
            (*module.forward(*given, blank_id=0), *module.best_path(*given, blank_id=0))
            for module in (ctc_viterbi, ctc_viterbi_triton)
        )
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)
        print(f"ctc_viterbi {sizes}: equal")


def norms() -> None:
    bias_norm_triton.triton_call = batch_norm_triton.triton_call = interpreted
    for sizes in NORM_SIZES:
        x, dy, lengths, *vectors = for_norms(*sizes)
        for dtype, tolerance in PRECISIONS:
            low = x.astype(dtype), dy.astype(dtype)
            given = [each.astype(jnp.float32) for each in low]
            y, saved = bias_norm_triton._forward(low[0].reshape(-1, sizes[2]), vectors[0], jnp.float32(0.3))
            found = (y, *bias_norm_triton._backward(saved, low[1].reshape(y.shape)))
            assert_near(found, bias_norm_expected(*given, vectors[0]), tolerance)
            found = batch_norm_parts(batch_norm_triton, *low, lengths, *vectors)
            assert_near(found, batch_norm_expected(*given, lengths, *vectors), tolerance)
            print(f"norms {sizes} {dtype}: equal")


def assert_near(found: Any, expected: Any, tolerance: float) -> None:
    """Compares arrays, relative to their largest magnitude."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            one.astype(jnp.float32), other, atol=tolerance * float(jnp.abs(other).max(initial=0))
        )


def joints() -> None:
    joint_triton.triton_call = interpreted
    for sizes in joint.SIZES:
        activation = sizes[-1]
        for dtype, tolerance in PRECISIONS:
            low = in_precision(joint.made(sizes), dtype)
            expected, cotangents, gradients = joint.reference_gradients(in_precision(low, "float32"), activation)
            found, kept = joint_triton._forward(*low, joint.BLANK, activation)
            found = [jnp.where(other == 0, 0, one) for one, other in zip(found, expected, strict=True)]  # padding
            of_given = joint_triton._backward(joint.BLANK, activation, kept, cotangents)[:4]
            assert_near((*found, *of_given), (*expected, *gradients), tolerance)
            print(f"transducer_joint {sizes} {dtype}: equal")


if __name__ == "__main__":
    main()
