"""Batch norm against the formula in NumPy: only over valid frames, and over all devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.nn.normalization import BatchNorm
from tests.support import assert_close

NORM = BatchNorm(momentum=0.3)
LENGTHS = np.array([7, 0, 3, 5], np.int32)


def frames(seed=0):
    x = np.random.default_rng(seed).normal(2.0, 3.0, (4, 7, 5)).astype(np.float32)
    x[1:, 5:] = np.nan  # padding, which must have no influence
    x[1] = np.nan
    return x


def variables():
    rng = np.random.default_rng(9)
    params = {"gain": rng.normal(1, 0.2, 5), "bias": rng.normal(0, 0.2, 5)}
    stats = {"mean": rng.normal(0, 1, 5), "variance": rng.uniform(0.5, 2, 5)}
    return jax.tree.map(np.float32, {"params": params, "batch_stats": stats})


@partial(jax.jit, static_argnames="use_running")
def apply(variables, x, lengths, use_running=False):
    """Returns the output and the updated running statistics."""
    return NORM.apply(variables, x, lengths, use_running=use_running, mutable=["batch_stats"])


def valid(x):
    return np.concatenate([row[:length] for row, length in zip(np.asarray(x), LENGTHS, strict=True)])


def test_training_normalises_over_valid_frames_and_moves_the_running_statistics():
    x, held = frames(), variables()
    y, changed = apply(held, x, LENGTHS)
    rows = valid(x).astype(np.float64)
    mean, variance = rows.mean(0), rows.var(0)
    params = held["params"]
    expected = (rows - mean) / np.sqrt(variance + 1e-5) * params["gain"] + params["bias"]
    assert_close(valid(y), expected, rtol=1e-5, atol=1e-5)
    before, after = held["batch_stats"], changed["batch_stats"]
    assert_close(after["mean"], 0.7 * before["mean"] + 0.3 * mean, rtol=1e-5, atol=1e-6)
    assert_close(after["variance"], 0.7 * before["variance"] + 0.3 * rows.var(0, ddof=1), rtol=1e-5)


def test_evaluation_uses_the_running_statistics():
    x, held = frames(), variables()
    y, _ = apply(held, x, LENGTHS, use_running=True)
    stats, params = held["batch_stats"], held["params"]
    expected = (valid(x) - stats["mean"]) / np.sqrt(stats["variance"] + 1e-5) * params["gain"] + params["bias"]
    assert_close(valid(y), expected, rtol=1e-5, atol=1e-5)


def test_a_batch_without_frames_leaves_the_statistics():
    held = variables()
    _, changed = apply(held, frames(), np.zeros(4, np.int32))
    np.testing.assert_array_equal(changed["batch_stats"]["mean"], held["batch_stats"]["mean"])
    np.testing.assert_array_equal(changed["batch_stats"]["variance"], held["batch_stats"]["variance"])


def test_padding_sends_no_gradient_and_gradients_are_finite():
    held, inside = variables(), (np.arange(7) < LENGTHS[:, None])[..., None]

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradients(params, x):
        y, _ = apply(held | {"params": params}, x, LENGTHS)
        return jnp.sum(jnp.where(inside, y**3, 0))

    grads, in_x = jax.device_get(gradients(held["params"], np.nan_to_num(frames())))
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in flatten(grads).values())
    assert np.abs(valid(in_x)).max() > 0
    assert (in_x[1] == 0).all()
    assert (in_x[2:, 5:] == 0).all()


@pytest.mark.parametrize("counts_padding", [False, True])
def test_the_gradient_is_that_of_the_formula(counts_padding):
    """The loss includes padded frames, which depend on the statistics of valid frames."""
    norm, held, x = BatchNorm(counts_padding=counts_padding), variables(), np.nan_to_num(frames())
    weights = np.random.default_rng(3).normal(size=x.shape).astype(np.float32)

    def ours(params, x):
        given = held | {"params": params}
        y, _ = norm.apply(given, x, jnp.asarray(LENGTHS), use_running=False, mutable=["batch_stats"])
        return jnp.sum(jnp.tanh(y) * weights)

    def formula(params, x):
        lengths = np.full(4, 7) if counts_padding else LENGTHS
        counted = np.float32(np.arange(7) < lengths[:, None])[..., None]
        mean = jnp.sum(x * counted, (0, 1)) / lengths.sum()
        centred = x - mean[None, None]
        variance = jnp.sum(centred**2 * counted, (0, 1)) / lengths.sum()
        gain, bias = (params[name][None, None] for name in ("gain", "bias"))
        return jnp.sum(jnp.tanh(centred / jnp.sqrt(variance + norm.eps)[None, None] * gain + bias) * weights)

    both = jax.jit(lambda *given: [jax.grad(loss, argnums=(0, 1))(*given) for loss in (ours, formula)])
    actual, expected = map(jax.tree.leaves, jax.device_get(both(held["params"], x)))
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, atol=1e-5 * np.abs(other).max())


def test_statistics_are_of_the_global_batch():
    x, held = frames(), variables()
    mesh = data_mesh(4)
    spread = jax.jit(apply, out_shardings=(by_rows(mesh), replicated(mesh)))(
        jax.device_put(held, replicated(mesh)), *jax.device_put((x, LENGTHS), by_rows(mesh))
    )
    alone = apply(held, x, LENGTHS)
    assert_close(valid(spread[0]), valid(alone[0]), rtol=1e-5, atol=1e-5)
    for path, leaf in flatten(spread[1]).items():
        assert_close(leaf, flatten(alone[1])[path], rtol=1e-6, atol=1e-6)
