"""Batch normalisation against the formula in NumPy: over valid frames only, and over all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.nn.normalization import BatchNorm

NORM = BatchNorm(momentum=0.3)
LENGTHS = np.array([7, 0, 3, 5], np.int32)


def frames(seed=0):
    x = np.random.default_rng(seed).normal(2.0, 3.0, (4, 7, 5)).astype(np.float32)
    x[1:, 5:] = np.nan  # beyond every length but the first row's: must have no influence
    x[1] = np.nan
    return x


def variables():
    rng = np.random.default_rng(9)
    params = {"gain": rng.normal(1, 0.2, 5), "bias": rng.normal(0, 0.2, 5)}
    stats = {"mean": rng.normal(0, 1, 5), "variance": rng.uniform(0.5, 2, 5)}
    return jax.tree.map(lambda leaf: jax.device_put(leaf.astype(np.float32)), {"params": params, "batch_stats": stats})


def apply(variables, x, lengths):
    return NORM.apply(variables, jnp.asarray(x), jnp.asarray(lengths), use_running=False, mutable=["batch_stats"])


def valid(x):
    return np.concatenate([row[:length] for row, length in zip(np.asarray(x), LENGTHS, strict=True)])


def test_training_normalises_over_valid_frames_and_moves_the_running_statistics():
    x, held = frames(), variables()
    y, changed = apply(held, x, LENGTHS)
    rows = valid(x).astype(np.float64)
    mean, variance = rows.mean(0), rows.var(0)
    params = jax.tree.map(np.asarray, held["params"])
    expected = (rows - mean) / np.sqrt(variance + 1e-5) * params["gain"] + params["bias"]
    np.testing.assert_allclose(valid(y), expected, rtol=1e-5, atol=1e-5)
    before, after = jax.tree.map(np.asarray, (held["batch_stats"], changed["batch_stats"]))
    np.testing.assert_allclose(after["mean"], 0.7 * before["mean"] + 0.3 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["variance"], 0.7 * before["variance"] + 0.3 * rows.var(0, ddof=1), rtol=1e-5)


def test_evaluation_uses_the_running_statistics():
    x, held = frames(), variables()
    y = NORM.apply(held, jnp.asarray(x), jnp.asarray(LENGTHS), use_running=True)
    stats, params = jax.tree.map(np.asarray, (held["batch_stats"], held["params"]))
    expected = (valid(x) - stats["mean"]) / np.sqrt(stats["variance"] + 1e-5) * params["gain"] + params["bias"]
    np.testing.assert_allclose(valid(y), expected, rtol=1e-5, atol=1e-5)


def test_a_batch_without_frames_leaves_the_statistics():
    held = variables()
    _, changed = apply(held, frames(), np.zeros(4, np.int32))
    np.testing.assert_array_equal(changed["batch_stats"]["mean"], held["batch_stats"]["mean"])
    np.testing.assert_array_equal(changed["batch_stats"]["variance"], held["batch_stats"]["variance"])


def test_padding_sends_no_gradient_and_gradients_are_finite():
    def loss(params, x):
        y, _ = apply(variables() | {"params": params}, x, LENGTHS)
        inside = jnp.arange(7)[None] < jnp.asarray(LENGTHS)[:, None]
        return jnp.sum(jnp.where(inside[..., None], y**3, 0))

    grads, in_x = jax.grad(loss, argnums=(0, 1))(variables()["params"], jnp.nan_to_num(frames()))
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in flatten(grads).values())
    assert np.abs(valid(in_x)).max() > 0
    assert (np.asarray(in_x)[1] == 0).all()
    assert (np.asarray(in_x)[2:, 5:] == 0).all()


@pytest.mark.parametrize("counts_padding", [False, True])
def test_the_gradient_is_that_of_the_formula(counts_padding):
    """Also where padded frames are made something of, which statistics of valid frames reach."""
    norm, held, x = BatchNorm(counts_padding=counts_padding), variables(), jnp.nan_to_num(frames())
    weights = jnp.asarray(np.random.default_rng(3).normal(size=x.shape), jnp.float32)

    def ours(params, x):
        y, _ = norm.apply(
            held | {"params": params}, x, jnp.asarray(LENGTHS), use_running=False, mutable=["batch_stats"]
        )
        return jnp.sum(jnp.tanh(y) * weights)

    def formula(params, x):
        lengths = np.full(4, 7) if counts_padding else LENGTHS
        counted = jnp.asarray((np.arange(7) < lengths[:, None])[..., None], jnp.float32)
        mean = jnp.sum(x * counted, (0, 1)) / lengths.sum()
        centred = x - mean[None, None]
        variance = jnp.sum(centred**2 * counted, (0, 1)) / lengths.sum()
        gain, bias = (params[name][None, None] for name in ("gain", "bias"))
        return jnp.sum(jnp.tanh(centred / jnp.sqrt(variance + norm.eps)[None, None] * gain + bias) * weights)

    actual, expected = (jax.grad(loss, argnums=(0, 1))(held["params"], x) for loss in (ours, formula))
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("num_devices", [2, 4])
def test_statistics_are_of_the_global_batch(num_devices):
    x, held = frames(), variables()
    mesh = data_mesh(num_devices)
    spread = jax.jit(apply, out_shardings=(by_rows(mesh), replicated(mesh)))(
        jax.device_put(held, replicated(mesh)), *jax.device_put((x, LENGTHS), by_rows(mesh))
    )
    alone = apply(held, x, LENGTHS)
    np.testing.assert_allclose(valid(spread[0]), valid(alone[0]), rtol=1e-5, atol=1e-5)
    for path, leaf in flatten(spread[1]).items():
        np.testing.assert_allclose(leaf, flatten(alone[1])[path], rtol=1e-6, atol=1e-6)
