"""Comparisons of the kernels for NVIDIA GPUs with their references, in Triton's interpreter and on a GPU.

Triton need not be installed to import this. References are computed on the CPU, because products of matrices in float32
are less precise on a GPU.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels.ctc_sweep.reference import sweep as ctc_sweep
from asr_jax.kernels.ctc_viterbi import reference as ctc_viterbi
from asr_jax.kernels.depthwise_conv.reference import Window
from asr_jax.kernels.lattice_sweep.reference import sweep as lattice_sweep
from tests.kernels import attention, convolutions, joint, norms, paths, small, sweeps
from tests.kernels.small import assert_computed, cases, computed
from tests.kernels.sweeps import RNNT, assert_equal
from tests.support import assert_close

PRECISIONS = ("float32", 1e-5), ("bfloat16", 2e-2)
"""Dtypes of the inputs, and differences from the reference relative to its largest magnitude."""


class Compared(NamedTuple):
    """Comparison of a kernel with its reference, values and gradients."""

    compare: Callable[[Any], None]
    """Function of some sizes."""
    sizes: Sequence[Any]
    """Sizes for the interpreter and for a GPU."""
    more: Sequence[Any] = ()
    """More sizes for a GPU."""


def kernel_of(folder: str) -> Any:
    """Module of a kernel, which needs Triton."""
    return importlib.import_module(f"asr_jax.kernels.{folder}.triton")


def on_cpu() -> Any:
    return jax.default_device(jax.devices("cpu")[0])


def in_precision(given: Any, dtype: str) -> list[jax.Array]:
    """Converts the arrays that are not integers."""
    return [each.astype(dtype) if jnp.issubdtype(each.dtype, jnp.floating) else each for each in given]


def assert_near(found: Any, expected: Any, tolerance: float) -> None:
    """Compares arrays, relative to their largest magnitude."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one.astype(jnp.float32), other, atol=tolerance * attention.scale_of(other))


def compare_ctc_sweep(sizes: Any) -> None:
    with on_cpu():
        given = sweeps.for_ctc(*sizes)
        both = given, sweeps.with_bonus(*given)
        expected = [ctc_sweep(*each) for each in both]
    for each, of_scan in zip(both, expected, strict=True):
        assert_equal(kernel_of("ctc_sweep").sweep(*each), of_scan)


def compare_lattice_sweep(sizes: Any) -> None:
    with on_cpu():
        given = sweeps.for_lattices(*sizes)
        expected = lattice_sweep(*given, *RNNT)
    assert_equal(kernel_of("lattice_sweep").sweep(*given, *RNNT), expected)


def compare_ctc_viterbi(sizes: Any) -> None:
    def both(module: Any) -> Any:
        last, pointers = module.forward(*given, blank_id=0)
        score, state = ctc_viterbi.final(last, given[3])
        return *last, pointers, score, module.backward(pointers, state)

    with on_cpu():
        given = paths.for_paths(*sizes)
        expected = both(ctc_viterbi)
    for one, other in zip(both(kernel_of("ctc_viterbi")), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def compare_relative_attention(sizes: Any) -> None:
    kernel = kernel_of("relative_attention")
    for dtype, tolerance in PRECISIONS:
        with on_cpu():
            low = in_precision(attention.made(sizes), dtype)
            expected, cotangent, gradients = attention.reference_gradients(tuple(in_precision(low, "float32")))
        mixed, kept = kernel.forward(*low, scale=attention.SCALE)
        found = kernel.backward(kept, cotangent.astype(dtype), scale=attention.SCALE)
        assert_near((mixed, *found[:5]), (expected, *gradients), tolerance)


def compare_depthwise_conv(sizes: Any) -> None:
    kernel, (*_, padding, stride, dilation) = kernel_of("depthwise_conv"), sizes
    window = Window((padding, (0, 0)), (stride, 1), (dilation, 1))
    with on_cpu():
        given, expected = convolutions.for_kernels(*sizes)
    for dtype, tolerance in PRECISIONS:
        x, filters, dy = (jnp.expand_dims(each, -2) for each in in_precision(given, dtype))
        found = kernel.conv(x, filters, window=window), *kernel.gradients(x, filters, dy, window=window)
        assert_near([each.squeeze(-2) for each in found], expected, tolerance)


def compare_bias_norm(sizes: Any) -> None:
    kernel = kernel_of("bias_norm")
    for dtype, tolerance in PRECISIONS:
        with on_cpu():
            x, dy, _, bias, *_ = norms.for_norms(*sizes)
            low = in_precision((x, dy), dtype)
            expected = norms.bias_norm_expected(*in_precision(low, "float32"), bias)
        x, dy = (each.reshape(-1, sizes[2]) for each in low)
        given = x, bias, jnp.float32(0.3)
        assert_near((kernel._forward(*given), *kernel._backward(*given, dy)), expected, tolerance)


def compare_masked_batch_norm(sizes: Any) -> None:
    for dtype, tolerance in PRECISIONS:
        with on_cpu():
            x, dy, *rest = norms.for_norms(*sizes)
            low = in_precision((x, dy), dtype)
            expected = norms.batch_norm_expected(*in_precision(low, "float32"), *rest)
        assert_near(norms.batch_norm_parts(kernel_of("masked_batch_norm"), *low, *rest), expected, tolerance)


def compare_transducer_joint(sizes: Any) -> None:
    kernel, activation = kernel_of("transducer_joint"), sizes[-1]
    for dtype, tolerance in PRECISIONS:
        with on_cpu():
            low = in_precision(joint.made(sizes), dtype)
            expected, cotangents, gradients = joint.reference_gradients(tuple(in_precision(low, "float32")), activation)
        options = {"blank_id": joint.BLANK, "activation": activation}
        found, kept = kernel.forward(*low, **options)
        found = [jnp.where(other == 0, 0, one) for one, other in zip(found, expected, strict=True)]  # padding
        of_given = kernel.backward(kept, cotangents, **options)[:4]
        assert_near((*found, *of_given), (*expected, *gradients), tolerance)


def compare_small(folder: str, sizes: Any) -> None:
    """Compares the operations of a folder."""
    for case in (case for case in cases(sizes).values() if case.kernel == folder):
        for dtype, _ in PRECISIONS:
            low = case.in_dtype(dtype)
            with on_cpu():
                expected = computed(low.in_dtype("float32"), "reference")
            assert_computed(computed(low, "triton"), expected, jnp.dtype(dtype))


COMPARED = {
    "bias_norm": Compared(compare_bias_norm, [*norms.NORM_SIZES, *norms.DRAWN]),
    "ctc_sweep": Compared(compare_ctc_sweep, [*sweeps.CTC_SIZES, *sweeps.CTC_DRAWN], [(400, 32, 60, 2)]),
    "ctc_viterbi": Compared(compare_ctc_viterbi, [*paths.PATH_SIZES, *paths.DRAWN]),
    "depthwise_conv": Compared(compare_depthwise_conv, [*convolutions.KERNEL_CASES, *convolutions.DRAWN]),
    "lattice_sweep": Compared(
        compare_lattice_sweep, [*sweeps.LATTICE_SIZES, *sweeps.LATTICE_DRAWN], [(375, 16, 75, 2)]
    ),
    "masked_batch_norm": Compared(compare_masked_batch_norm, [*norms.NORM_SIZES, *norms.DRAWN]),
    "relative_attention": Compared(compare_relative_attention, [*attention.SIZES, *attention.DRAWN]),
    "transducer_joint": Compared(compare_transducer_joint, [*joint.SIZES, *joint.DRAWN]),
} | {
    folder: Compared(partial(compare_small, folder), [*small.SIZES[::2], *small.DRAWN], small.SIZES[1:2])
    for folder in ("glu", "masking", "pairwise_downsample", "relative_shift", "swoosh")
}
"""Comparisons by the folders of the kernels."""
