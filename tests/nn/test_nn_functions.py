"""Activations, schedules, positions, initial values and norms: against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import max_abs

from asr_jax.nn.activations import gelu, swoosh_l, swoosh_r
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import bias_norm
from asr_jax.nn.positions import compact_positions, relative_shift
from asr_jax.nn.schedules import at, piecewise_linear

SWOOSH = [(swoosh_l, 4.0, 0.035), (swoosh_r, 1.0, 0.313261687)]


@pytest.mark.parametrize(("swoosh", "shift", "offset"), SWOOSH)
def test_swoosh_and_its_slope(swoosh, shift, offset):
    x = np.array([-1e4, -90.0, -5.0, -0.1, 0.0, 0.5, shift, 7.0, 95.0, 1e4])
    expected = np.logaddexp(0.0, x - shift) - 0.08 * x - offset
    np.testing.assert_allclose(jax.jit(swoosh)(jnp.asarray(x, jnp.float32)), expected, rtol=1e-6, atol=1e-6)
    slopes = jax.jit(jax.vmap(jax.grad(swoosh)))(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(slopes, 1 / (1 + np.exp(np.minimum(shift - x, 500))) - 0.08, atol=1e-6)


def test_swoosh_in_bfloat16_is_rounded_once_and_keeps_only_its_input():
    x = jnp.linspace(-8, 8, 33).astype(jnp.bfloat16)
    exact = swoosh_l(x.astype(jnp.float32))
    np.testing.assert_array_equal(swoosh_l(x), exact.astype(jnp.bfloat16))
    _, backward = jax.vjp(swoosh_l, x)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(backward)] == [(x.shape, jnp.bfloat16)]


def test_gelu_in_bfloat16_is_rounded_once():
    x = jnp.linspace(-6, 6, 997, dtype=jnp.bfloat16)
    exact = jax.nn.gelu(x.astype(jnp.float32), approximate=False)
    found = gelu(x)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=2**-8, atol=2e-6)


def test_swoosh_r_is_zero_at_zero():
    assert abs(float(swoosh_r(jnp.zeros(())))) < 1e-7


@pytest.mark.parametrize(("step", "value"), [(0, 0.3), (1000, 0.25), (2000, 0.2), (11000, 0.15), (10**6, 0.1)])
def test_piecewise_linear_of_a_traced_step(step, value):
    schedule = piecewise_linear((0, 0.3), (2000, 0.2), (20000, 0.1))
    assert float(jax.jit(schedule)(jnp.int32(step))) == pytest.approx(value, abs=1e-6)


def test_a_value_may_be_constant_or_change():
    schedule = piecewise_linear((0, 0.0), (10, 1.0))
    assert [float(at(value, jnp.int32(5))) for value in (0.25, schedule)] == [0.25, 0.5]


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
    np.testing.assert_allclose(long[:, 0], long[::-1, 0])  # cosines: even in the offset
    np.testing.assert_allclose(long[:, 1], -long[::-1, 1])  # sines: odd
    with pytest.raises(ValueError, match="even, got 7"):
        compact_positions(3, 7)


@pytest.mark.parametrize(("initial_scale", "kernel_bound", "bias_bound"), [(None, 0.1, 0.1), (0.05, 0.005, 0.005)])
def test_initial_values_of_a_linear_layer(initial_scale, kernel_bound, bias_bound):
    params = jax.jit(Linear(500, initial_scale).init)(jax.random.key(0), jnp.zeros((1, 100)))["params"]
    assert 0.99 * kernel_bound < jnp.abs(params["kernel"]).max() <= kernel_bound
    assert 0.9 * bias_bound < jnp.abs(params["bias"]).max() <= bias_bound
    assert abs(float(params["kernel"].mean())) < 0.01 * kernel_bound


def test_linear_computes_in_its_type():
    layer = Linear(3, dtype=jnp.bfloat16)
    x = jnp.ones((2, 4))
    params = layer.init(jax.random.key(0), x)
    y = layer.apply(params, x)
    assert y.dtype == jnp.bfloat16
    assert params["params"]["kernel"].dtype == jnp.float32
    expected = x @ params["params"]["kernel"] + params["params"]["bias"].reshape(1, 3)
    assert max_abs(y, expected) < 0.03


def test_bias_norm():
    x = np.random.default_rng(0).normal(size=(2, 3, 5))
    bias = np.linspace(-1, 1, 5)
    expected = x * np.exp(0.7) / np.sqrt(np.mean((x - bias) ** 2, axis=-1, keepdims=True))
    actual = bias_norm(jnp.float32(x), jnp.float32(bias), jnp.float32(0.7))
    assert max_abs(actual, expected) < 1e-5


def test_bias_norm_of_a_frame_that_equals_the_bias_is_finite_with_its_gradient():
    def loss(x):
        return bias_norm(x, jnp.zeros(4), jnp.zeros(())).sum()

    assert jnp.isfinite(jax.jit(jax.grad(loss))(jnp.zeros((1, 4)))).all()
