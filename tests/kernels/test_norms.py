"""The kernels of bias norm and of batch norm over valid frames against their references, values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from support import assert_within, relative

from asr_jax.kernels import frames_tpu
from asr_jax.kernels.bias_norm.api import bias_norm
from asr_jax.kernels.masked_batch_norm import mosaic_tpu as batch_norm_tpu
from asr_jax.kernels.masked_batch_norm.api import masked_batch_norm
from tests.kernels.compiled import compiled_for
from tests.kernels.norms import (
    DRAWN,
    NORM_SIZES,
    batch_norm_expected,
    batch_norm_parts,
    bias_norm_expected,
    bias_norm_gradients,
    for_norms,
)  # fmt: skip

BFLOAT16 = "bfloat16", 2e-2
each_case = pytest.mark.parametrize(
    ("sizes", "dtype", "tolerance"),
    [
        *((sizes, "float32", 1e-5) for sizes in NORM_SIZES),
        (NORM_SIZES[1], *BFLOAT16),
        *(pytest.param(sizes, *BFLOAT16, marks=pytest.mark.slow) for sizes in (NORM_SIZES[0], NORM_SIZES[2], *DRAWN)),
        *(pytest.param(sizes, "float32", 1e-5, marks=pytest.mark.slow) for sizes in DRAWN),
    ],
)


@each_case
def test_the_kernel_of_bias_norm_for_tpus(sizes, dtype, tolerance, interpreted, monkeypatch):
    monkeypatch.setattr(frames_tpu, "BLOCK", 2**14)
    x, dy, _, bias, *_ = for_norms(*sizes)

    @jax.jit
    def both(x, dy):
        found = bias_norm_gradients(partial(bias_norm, implementation="mosaic_tpu"), x, dy, bias)
        return found, bias_norm_expected(x.astype(jnp.float32), dy.astype(jnp.float32), bias)

    for found, expected in zip(*both(x.astype(dtype), dy.astype(dtype)), strict=True):
        assert found.dtype == (dtype if found.ndim == 2 else jnp.float32)
        assert_within(relative(found, expected), tolerance)


@each_case
def test_the_kernels_of_batch_norm_for_tpus(sizes, dtype, tolerance, interpreted, monkeypatch):
    monkeypatch.setattr(frames_tpu, "BLOCK", 2**14)
    x, dy, *rest = for_norms(*sizes)

    @jax.jit
    def both(x, dy):
        found = batch_norm_parts(batch_norm_tpu, x, dy, *rest)
        return found, batch_norm_expected(x.astype(jnp.float32), dy.astype(jnp.float32), *rest)

    for found, expected in zip(*both(x.astype(dtype), dy.astype(dtype)), strict=True):
        assert found.dtype == (dtype if found.ndim == 3 else jnp.float32)
        assert_within(relative(found, expected), tolerance)


def test_what_cannot_run_is_named():
    x, _, lengths, bias, *_ = for_norms(2, 3, 4)
    with pytest.raises(ValueError, match="triton on cpu: it is for NVIDIA GPUs; expected reference"):
        bias_norm(x, bias, jnp.zeros(()), implementation="triton")
    with pytest.raises(ValueError, match="mosaic_tpu on cpu: it is for TPUs; expected reference"):
        masked_batch_norm(x, lengths, bias, bias, 1e-5, "mosaic_tpu")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton")])
@pytest.mark.parametrize("norm", ["bias_norm", "batch_norm"])
@pytest.mark.parametrize("shape", [(8, 512, 512), (3, 1001, 80)])
def test_they_compile_for_accelerators(norm, device, implementation, shape, dtype):
    def call(x, lengths, gain, bias):
        if norm == "bias_norm":
            return bias_norm(x, bias, gain[0], implementation=implementation)
        return masked_batch_norm(x, lengths, gain, bias, 1e-5, implementation)[0]

    def gradient(x, lengths, gain, bias):
        loss = lambda x, *given: jnp.sum(call(x, lengths, *given).astype(jnp.float32) ** 2)  # noqa: E731
        return jax.value_and_grad(loss, (0, 1, 2))(x, gain, bias)

    shapes = partial(jax.ShapeDtypeStruct, shape[2:], "float32")
    given = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape[:1], "int32"), shapes(), shapes()
    kernels = 2 if norm == "bias_norm" else 5
    assert compiled_for(device, gradient, *given).as_text().count("custom-call(") >= kernels
