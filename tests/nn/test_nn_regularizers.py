"""Regularisers that modify gradients, against the gradients of the losses that define them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import approx, assert_close, assert_within, max_abs

from asr_jax.nn.gradients import limit_values, penalize_large, scale_gradient
from asr_jax.nn.regularizers import balance, whiten
from asr_jax.nn.stochastic import Regulariser, dropout, kept


def draw(*shape, seed=0, mean=0.0, scale=1.0):
    return np.random.default_rng(seed).normal(mean, scale, size=shape).astype(np.float32)


def gradient_of(regularised):
    """Compiles the gradient of `regularised(x, apply, *options)` to a function of x, dy and options.

    The output must equal the input. If the regulariser does not apply, the gradient must equal dy."""

    @jax.jit
    def both(apply, x, dy, *options):
        y, backward = jax.vjp(lambda x: regularised(x, apply, *options), x)
        return y, backward(dy)[0]

    def gradient(x, dy, *options):
        for apply in (False, True):
            y, dx = jax.device_get(both(np.bool_(apply), x, dy, *options))
            np.testing.assert_array_equal(y, x)
            assert apply or np.array_equal(dx, dy)
        return dx

    return gradient


def balanced(x, dy, *, min_positive, max_positive, min_abs, max_abs):
    """Gradient of the loss per channel that defines `balance`, by automatic differentiation."""

    def to_mean(share):
        return 0.8139535143 * jnp.arctanh(2 * share - 1)

    def loss(x):
        mean, power = x.mean(0), (x**2).mean(0)
        ratio, rms = mean / jnp.sqrt(power - mean**2), jnp.sqrt(power)
        over_mean = jnp.abs(ratio - jnp.clip(ratio, to_mean(min_positive), to_mean(max_positive)))
        low, high = np.sqrt(np.pi / 2) * min_abs, np.sqrt(np.pi / 2) * max_abs
        return jnp.sum(over_mean + jnp.abs(jnp.log(jnp.clip(rms, low, high) / rms)))

    g = jax.grad(loss)(x)
    size = jnp.sqrt(jnp.mean(g**2, axis=0, keepdims=True))
    return dy + jnp.abs(dy) * g * 0.04 / jnp.maximum(size, 1e-20)


RANGES = [
    {"min_positive": 0.45, "max_positive": 0.55, "min_abs": 0.2, "max_abs": 4.0},
    {"min_positive": 0.05, "max_positive": 0.95, "min_abs": 3.0, "max_abs": 100.0},
    {"min_positive": 0.6, "max_positive": 0.7, "min_abs": 0.01, "max_abs": 0.1},
]
# Channels of several means and scales: some exceed each limit, others do not.
CHANNELS = draw(40, 6) * np.float32([0.05, 1, 1, 10, 0.3, 1]) + np.float32([0.1, 0.5, -2, 0, 0, 0.2])


def test_balance_adds_the_gradient_of_its_loss():
    dy, definition = draw(40, 6, seed=1), jax.jit(lambda x, dy, ranges: balanced(x, dy, **ranges))
    gradient = gradient_of(lambda x, apply, ranges: balance(x, apply, **ranges))
    for ranges in RANGES:
        expected = definition(CHANNELS, dy, ranges)
        assert_within(max_abs(gradient(CHANNELS, dy, ranges), expected), 1e-5)
        assert max_abs(expected, dy) > 0.01


def test_balance_of_channels_that_are_constant_or_zero_is_finite():
    x = np.tile(np.float32([0, 1, 1e-12, 1e12]), (9, 1))
    assert np.isfinite(gradient_of(balance)(x, draw(9, 4))).all()


def whitened(x, dy, *, limit, grad_scale, num_groups):
    def metric(x):
        grouped = (x - x.mean(0, keepdims=True)).reshape(len(x), num_groups, -1)
        eigenvalues = jnp.linalg.eigvalsh(jnp.einsum("ngc,ngd->gcd", grouped, grouped))
        return jnp.mean(eigenvalues**2) / jnp.mean(eigenvalues) ** 2

    value, g = jax.value_and_grad(metric)(x)
    return value, dy + (value >= limit) * grad_scale * jnp.linalg.norm(dy) * g / jnp.linalg.norm(g)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_whiten_adds_the_gradient_of_the_spread_of_eigenvalues(num_groups):
    options = {"grad_scale": 0.3, "num_groups": num_groups}
    gradient = gradient_of(lambda x, apply, limit: whiten(x, apply, limit=limit, **options))

    @jax.jit
    def definition(x, dy, limit):
        return whitened(x, dy, limit=limit, **options)[1]

    dy = draw(40, 6, seed=1)
    for limit in (1.1, 100.0):
        expected = definition(CHANNELS, dy, limit)
        assert_within(max_abs(gradient(CHANNELS, dy, limit), expected), 1e-4)
        assert (max_abs(expected, dy) > 0.01) == (limit < 2)


@pytest.mark.parametrize("name", ["balance", "whiten"])
def test_masked_frames_enter_no_statistics_and_get_nothing(name):
    def regularised(x, apply, mask=None):
        if name == "balance":
            return balance(x, apply, min_abs=3.0, mask=mask)
        return whiten(x, apply, limit=1.0, grad_scale=0.1, mask=mask)

    gradient = gradient_of(regularised)
    x, mask = draw(3, 5, 4, mean=0.5), np.array([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]], bool)
    dy = np.where(mask[:, :, None], draw(3, 5, 4, seed=1), np.float32(0))
    masked = gradient(np.where(mask[:, :, None], x, np.float32(100)), dy, mask)
    np.testing.assert_array_equal(masked[~mask], dy[~mask])
    alone = gradient(x[mask][None], dy[mask][None])
    assert_within(max_abs(masked[mask], alone[0]), 1e-5)


def test_a_mask_of_frames_holds_for_all_inner_axes():
    x, mask = draw(2, 3, 4, 5), np.array([[1, 1, 0], [1, 0, 0]], bool)
    dy = draw(2, 3, 4, 5, seed=1)
    gradient = gradient_of(lambda x, apply, mask=None: balance(x, apply, min_abs=2.0, mask=mask))
    assert_within(max_abs(gradient(x, dy, mask)[mask], gradient(x[mask], dy[mask])), 1e-5)


def test_limit_values_turns_what_leads_outside():
    x, dy = np.float32([-2, -2, 0, 0, 2, 2]), np.float32([1, -1, 1, -1, 1, -1])
    limited = gradient_of(lambda x, apply: limit_values(x, apply, minimum=-1.0, maximum=1.0))(x, dy)
    np.testing.assert_array_equal(limited, [-1, -1, 1, -1, 1, 1])


def test_penalize_large_and_scale_gradient():
    x, dy = np.float32([[-3, 1, 3], [-3, 1, 3]]), np.ones((2, 3), np.float32)
    penalised = gradient_of(lambda x, apply, mask: penalize_large(x, apply, limit=2.0, penalty=0.1, mask=mask))
    assert_close(penalised(x, dy, np.array([[True], [False]])), [[0.9, 1.0, 1.1], [1, 1, 1]], rtol=1e-6)
    # If it does not apply, the factor is 1.
    scaled = gradient_of(lambda x, apply: jnp.where(apply, scale_gradient(x, 0.2), x))
    np.testing.assert_array_equal(scaled(x, dy), np.float32(0.2) * dy)


def test_nothing_is_computed_where_it_does_not_apply():
    text = jax.jit(jax.grad(lambda x, a: balance(x, a).sum())).lower(CHANNELS, np.bool_(True)).as_text()
    assert "stablehlo.case" in text
    assert text.index("stablehlo.case") < text.index("stablehlo.sqrt")


def test_a_regulariser_draws_each_time_with_its_chance_and_without_a_key_does_nothing():
    dy = draw(3, 40, 6, seed=1)

    def changed(key, x):
        def three(x):
            regularise = Regulariser(key, None if key is None else jnp.float32(0))
            return jnp.stack([regularise.balance(x[i], min_positive=0.9) for i in range(3)])

        return jnp.any(jax.vjp(three, x)[1](dy)[0] != dy, axis=(1, 2))

    @jax.jit
    def both(key, x):
        return jax.vmap(changed, (0, None))(jax.random.split(key, 200), x), changed(None, x)

    drawn, without = jax.device_get(both(jax.random.key(0), np.stack([CHANNELS] * 3)))
    assert 250 < drawn.sum() < 350  # the initial probability is 0.5
    assert set(drawn.sum(1)) == {0, 1, 2, 3}  # draws within a call differ
    assert not without.any()


def test_dropout_keeps_the_mean_and_shares_an_axis():
    @jax.jit
    def draws(key, x, rate):
        never, always = (kept(key, rate, (100,)) for rate in (0.0, 1.0))
        return dropout(x, key, rate=rate, shared_axis=1), never, always

    y, never, always = jax.device_get(draws(jax.random.key(0), np.ones((50, 7, 60), np.float32), 0.25))
    assert_close(np.unique(y), [0.0, 1 / 0.75], rtol=1e-6)
    assert float(y.mean()) == approx(1.0, abs=0.05)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert never.all()
    assert not always.any()
