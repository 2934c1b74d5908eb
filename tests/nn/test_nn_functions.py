"""Activations, schedules, positions, initial values and norms against closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, max_abs

from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.kernels.swoosh.api import swoosh_l, swoosh_r
from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import bias_norm
from asr_jax.nn.positions import compact_positions
from asr_jax.nn.schedules import at, piecewise_linear

SWOOSH = [(swoosh_l, 4.0, 0.035), (swoosh_r, 1.0, 0.313261687)]


@pytest.mark.parametrize(("swoosh", "shift", "offset"), SWOOSH)
def test_swoosh_and_its_slope(swoosh, shift, offset):
    x = np.array([-1e4, -90.0, -5.0, -0.1, 0.0, 0.5, shift, 7.0, 95.0, 1e4])
    expected = np.logaddexp(0.0, x - shift) - 0.08 * x - offset
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(swoosh)))(np.float32(x))
    assert_close(values, expected, rtol=1e-6, atol=1e-6)
    assert_close(slopes, 1 / (1 + np.exp(np.minimum(shift - x, 500))) - 0.08, atol=1e-6)


def test_swoosh_in_bfloat16_is_rounded_once_and_keeps_only_its_input():
    x = np.linspace(-8, 8, 33).astype(jnp.bfloat16)
    np.testing.assert_array_equal(jax.jit(swoosh_l)(x), np.asarray(jax.jit(swoosh_l)(np.float32(x))).astype(x.dtype))
    backward = jax.eval_shape(lambda x: jax.vjp(swoosh_l, x)[1], x)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(backward)] == [(x.shape, jnp.bfloat16)]


def test_gelu_in_bfloat16_is_rounded_once():
    x = np.linspace(-6, 6, 997).astype(jnp.bfloat16)
    found = jax.jit(gelu)(x)
    assert found.dtype == jnp.bfloat16
    exact = jax.jit(partial(jax.nn.gelu, approximate=False))(np.float32(x))
    half_unit = 2.0**-8 * np.abs(exact) + 2e-6  # a second rounding would exceed it
    assert (np.abs(np.float32(found) - exact) <= half_unit).all()


def test_swoosh_r_is_zero_at_zero():
    # Two terms below 2 cancel. Each has a rounding error of up to 2^-24 from its sum and as much from its logarithm.
    assert_within(abs(float(jax.jit(swoosh_r)(np.float32(0)))), 2 * 2.0**-23)


def test_piecewise_linear_of_a_traced_step():
    schedule = piecewise_linear((0, 0.3), (2000, 0.2), (20000, 0.1))
    steps = np.array([0, 1000, 2000, 11000, 10**6], np.int32)
    assert_close(jax.jit(jax.vmap(schedule))(steps), [0.3, 0.25, 0.2, 0.15, 0.1], atol=1e-6)


def test_a_value_may_be_constant_or_change():
    schedule = piecewise_linear((0, 0.0), (10, 1.0))
    found = jax.jit(lambda step: [at(value, step) for value in (0.25, schedule)])(jnp.int32(5))
    np.testing.assert_array_equal(found, [0.25, 0.5])


@pytest.mark.parametrize("points", [(), ((1, 0.0), (1, 1.0)), ((2, 0.0), (1, 1.0))])
def test_points_out_of_order(points):
    with pytest.raises(ValueError, match="ascending"):
        piecewise_linear(*points)


@pytest.mark.parametrize("num_frames", [1, 2, 7])
def test_relative_shift(num_frames):
    scores = np.random.default_rng(0).normal(size=(2, num_frames, 2 * num_frames - 1)).astype(np.float32)
    shifted = np.asarray(jax.jit(relative_shift)(scores))
    for t in range(num_frames):
        for s in range(num_frames):
            np.testing.assert_array_equal(shifted[:, t, s], scores[:, t, num_frames - 1 + s - t])


def test_positions_depend_on_the_offset_alone():
    long, short = compact_positions(50, 8), compact_positions(3, 8)
    np.testing.assert_array_equal(long[47:52], short)
    np.testing.assert_array_equal(long[:, -1], 1.0)
    assert_close(long[:, 0], long[::-1, 0])  # cosines: even in the offset
    assert_close(long[:, 1], -long[::-1, 1])  # sines: odd
    with pytest.raises(ValueError, match="even, got 7"):
        compact_positions(3, 7)


def test_initial_values_of_a_linear_layer():
    """Values are in ±1/√100. With an initial scale of 0.05, the kernel is in ±0.05/√100 and the bias in ±0.005."""
    layers = (Linear(500), Linear(500, 0.05))
    init = jax.jit(lambda x: [layer.init(jax.random.key(0), x)["params"] for layer in layers])
    for params, bound in zip(jax.device_get(init(np.zeros((1, 100), np.float32))), (0.1, 0.005), strict=True):
        assert 0.99 * bound < np.abs(params["kernel"]).max() <= bound
        assert 0.9 * bound < np.abs(params["bias"]).max() <= bound
        assert_within(abs(float(params["kernel"].mean())), 0.01 * bound)


def test_linear_computes_in_its_type():
    layer, x, rng = Linear(3, dtype=jnp.bfloat16), np.ones((2, 4), np.float32), np.random.default_rng(0)
    shapes = jax.eval_shape(lambda x: layer.init(jax.random.key(0), x), x)["params"]
    assert shapes["kernel"].dtype == jnp.float32
    params = jax.tree.map(lambda leaf: rng.uniform(-0.5, 0.5, leaf.shape).astype(np.float32), shapes)
    y = jax.jit(layer.apply)({"params": params}, x)
    assert y.dtype == jnp.bfloat16
    assert_within(max_abs(y, x @ params["kernel"] + params["bias"]), 0.03)


def test_bias_norm():
    x = np.random.default_rng(0).normal(size=(2, 3, 5))
    bias = np.linspace(-1, 1, 5)
    expected = x * np.exp(0.7) / np.sqrt(np.mean((x - bias) ** 2, axis=-1, keepdims=True))
    actual = jax.jit(bias_norm)(np.float32(x), np.float32(bias), np.float32(0.7))
    assert_within(max_abs(actual, expected), 1e-5)


def test_bias_norm_of_a_frame_that_equals_the_bias_is_finite_with_its_gradient():
    def loss(x):
        return bias_norm(x, jnp.zeros(4), jnp.zeros(())).sum()

    assert np.isfinite(jax.jit(jax.grad(loss))(np.zeros((1, 4), np.float32))).all()
