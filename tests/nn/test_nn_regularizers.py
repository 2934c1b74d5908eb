"""Gradient-only regularisers against the gradients of the losses that define them, by autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import max_abs

from asr_jax.nn.gradients import limit_values, penalize_large, scale_gradient
from asr_jax.nn.regularizers import balance, whiten, whitening_metric
from asr_jax.nn.stochastic import Regulariser, dropout, kept

YES, NO = jnp.array(True), jnp.array(False)


def draw(*shape, seed=0, mean=0.0, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(mean, scale, size=shape), jnp.float32)


def gradient(regularised, x, dy):
    """What reaches `x` when `dy` reaches the output; the output must be the input."""

    @jax.jit
    def both(x, dy):
        y, backward = jax.vjp(regularised, x)
        return y, backward(dy)[0]

    y, dx = both(x, dy)
    np.testing.assert_array_equal(y, x)
    return dx


def balanced(x, dy, *, min_positive, max_positive, min_abs, max_abs):
    """The loss per channel that `balance` is defined by, differentiated as it stands."""

    def to_mean(share):
        return 0.8139535143 * np.arctanh(2 * share - 1)

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
# Channels of several means and scales, so that each limit is passed by some and kept by others.
CHANNELS = draw(40, 6) * jnp.array([[0.05, 1, 1, 10, 0.3, 1]]) + jnp.array([[0.1, 0.5, -2, 0, 0, 0.2]])


@pytest.mark.parametrize("ranges", RANGES)
def test_balance_adds_the_gradient_of_its_loss(ranges):
    dy = draw(40, 6, seed=1)
    expected = jax.jit(lambda x, dy: balanced(x, dy, **ranges))(CHANNELS, dy)
    assert max_abs(gradient(lambda x: balance(x, YES, **ranges), CHANNELS, dy), expected) < 1e-5
    assert max_abs(expected, dy) > 0.01
    np.testing.assert_array_equal(gradient(lambda x: balance(x, NO, **ranges), CHANNELS, dy), dy)


def test_balance_of_channels_that_are_constant_or_zero_is_finite():
    x = jnp.stack([jnp.zeros(9), jnp.ones(9), jnp.full(9, 1e-12), jnp.full(9, 1e12)], axis=-1)
    assert jnp.isfinite(gradient(lambda x: balance(x, YES), x, draw(9, 4))).all()


def whitened(x, dy, *, limit, grad_scale, num_groups):
    def metric(x):
        grouped = (x - x.mean(0, keepdims=True)).reshape(len(x), num_groups, -1)
        eigenvalues = jnp.linalg.eigvalsh(jnp.einsum("ngc,ngd->gcd", grouped, grouped))
        return jnp.mean(eigenvalues**2) / jnp.mean(eigenvalues) ** 2

    value, g = jax.value_and_grad(metric)(x)
    return value, dy + (value >= limit) * grad_scale * jnp.linalg.norm(dy) * g / jnp.linalg.norm(g)


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("limit", [1.1, 100.0])
def test_whiten_adds_the_gradient_of_the_spread_of_eigenvalues(num_groups, limit):
    dy = draw(40, 6, seed=1)
    options = {"limit": limit, "grad_scale": 0.3, "num_groups": num_groups}
    metric, expected = jax.jit(lambda x, dy: whitened(x, dy, **options))(CHANNELS, dy)
    ours = jax.jit(lambda x: whitening_metric(x, num_groups=num_groups))(CHANNELS)
    assert float(ours) == pytest.approx(float(metric), rel=1e-4)
    assert max_abs(gradient(lambda x: whiten(x, YES, **options), CHANNELS, dy), expected) < 1e-4
    assert (max_abs(expected, dy) > 0.01) == (limit < 2)
    np.testing.assert_array_equal(gradient(lambda x: whiten(x, NO, **options), CHANNELS, dy), dy)


@pytest.mark.parametrize("regularised", [lambda x, m: balance(x, YES, min_abs=3.0, mask=m), None])
def test_masked_frames_enter_no_statistics_and_get_nothing(regularised):
    regularised = regularised or (lambda x, m: whiten(x, YES, limit=1.0, grad_scale=0.1, mask=m))
    x, mask = draw(3, 5, 4, mean=0.5), jnp.array([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]], bool)
    dy = jnp.where(mask[:, :, None], draw(3, 5, 4, seed=1), 0.0)
    noisy = jnp.where(mask[:, :, None], x, 100.0)
    masked = gradient(lambda x: regularised(x, mask), noisy, dy)
    np.testing.assert_array_equal(masked[~mask], dy[~mask])
    alone = gradient(lambda x: regularised(x, None), x[mask][None], dy[mask][None])
    assert max_abs(masked[mask], alone[0]) < 1e-5


def test_a_mask_of_frames_holds_for_all_inner_axes():
    x, mask = draw(2, 3, 4, 5), jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    dy = draw(2, 3, 4, 5, seed=1)
    actual = gradient(lambda x: balance(x, YES, min_abs=2.0, mask=mask), x, dy)
    expected = gradient(lambda x: balance(x, YES, min_abs=2.0), x[mask], dy[mask])
    assert max_abs(actual[mask], expected) < 1e-5


def test_limit_values_turns_what_leads_outside():
    x, dy = jnp.array([-2.0, -2, 0, 0, 2, 2]), jnp.array([1.0, -1, 1, -1, 1, -1])
    limited = gradient(lambda x: limit_values(x, YES, minimum=-1.0, maximum=1.0), x, dy)
    np.testing.assert_array_equal(limited, jnp.array([-1.0, -1, 1, -1, 1, 1]))
    np.testing.assert_array_equal(gradient(lambda x: limit_values(x, NO, minimum=-1.0, maximum=1.0), x, dy), dy)


def test_penalize_large_and_scale_gradient():
    x, dy = jnp.array([[-3.0, 1.0, 3.0], [-3.0, 1.0, 3.0]]), jnp.ones((2, 3))
    mask = jnp.array([[True], [False]])
    penalised = gradient(lambda x: penalize_large(x, YES, limit=2.0, penalty=0.1, mask=mask), x, dy)
    np.testing.assert_allclose(penalised, [[0.9, 1.0, 1.1], [1, 1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(gradient(lambda x: penalize_large(x, NO, limit=2.0, penalty=0.1), x, dy), dy)
    np.testing.assert_array_equal(gradient(lambda x: scale_gradient(x, 0.2), x, dy), jnp.float32(0.2) * dy)


def test_nothing_is_computed_where_it_does_not_apply():
    text = jax.jit(jax.grad(lambda x, a: balance(x, a).sum())).lower(CHANNELS, YES).as_text()
    assert "stablehlo.case" in text
    assert text.index("stablehlo.case") < text.index("stablehlo.sqrt")


def test_a_regulariser_draws_each_time_with_its_chance_and_without_a_key_does_nothing():
    dy = draw(3, 40, 6, seed=1)

    def changed(key, step):
        def three(x):
            regularise = Regulariser(key, step)
            return jnp.stack([regularise.balance(x[i], min_positive=0.9) for i in range(3)])

        dx = jax.vjp(three, jnp.stack([CHANNELS] * 3))[1](dy)[0]
        return jnp.any(dx != dy, axis=(1, 2))

    drawn = jax.jit(jax.vmap(changed, (0, None)))(jax.random.split(jax.random.key(0), 200), jnp.float32(0))
    assert 250 < drawn.sum() < 350  # the chance at the start is a half
    assert set(np.asarray(drawn.sum(1))) == {0, 1, 2, 3}  # not all alike within a call
    assert not changed(None, None).any()


def test_dropout_keeps_the_mean_and_shares_an_axis():
    x = jnp.ones((50, 7, 60))
    y = dropout(x, jax.random.key(0), rate=jnp.float32(0.25), shared_axis=1)
    np.testing.assert_allclose(jnp.unique(y), [0.0, 1 / 0.75], rtol=1e-6)
    assert float(y.mean()) == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(y, jnp.broadcast_to(y[:, :1], y.shape))
    assert kept(jax.random.key(0), 0.0, (100,)).all()
    assert not kept(jax.random.key(0), 1.0, (100,)).any()
