import jax.numpy as jnp
import numpy as np
import optax
import pytest

from asr_jax.optim.ema import updated_average
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay


def test_adamw_follows_the_formula_clips_by_global_norm_and_decays_kernels_only():
    settings = AdamW(WarmupHoldDecay(peak_lr=0.1, warmup_updates=0, decay="none"), weight_decay=0.5, clip_norm=1.0)
    optimizer = settings.build(10)
    params = {
        "dense": {"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([3.0])},
        "stack": {"gain": jnp.ones((2, 2))},
    }
    state = optimizer.init(params)
    m = dict.fromkeys(("kernel", "bias", "gain"), 0.0)
    v = dict(m)
    ours = {"kernel": np.array([[1.0, -2.0]]), "bias": np.array([3.0]), "gain": np.ones((2, 2))}
    for t in (1, 2, 3):
        grads = {"kernel": np.array([[3.0, 4.0]]) * t, "bias": np.array([12.0]), "gain": np.zeros((2, 2))}
        tree = {"dense": {"kernel": grads["kernel"], "bias": grads["bias"]}, "stack": {"gain": grads["gain"]}}
        updates, state = optimizer.update(
            {k: {n: jnp.asarray(x) for n, x in d.items()} for k, d in tree.items()}, state, params
        )
        params = optax.apply_updates(params, updates)
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        for name, grad in grads.items():
            g = grad * min(1.0, 1.0 / norm)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.98 * v[name] + 0.02 * g**2
            step = m[name] / (1 - 0.9**t) / (np.sqrt(v[name] / (1 - 0.98**t)) + 1e-8)
            ours[name] = ours[name] - 0.1 * (step + (0.5 * ours[name] if name == "kernel" else 0.0))
    np.testing.assert_allclose(params["dense"]["kernel"], ours["kernel"], rtol=1e-5)
    np.testing.assert_allclose(params["dense"]["bias"], ours["bias"], rtol=1e-5)
    np.testing.assert_array_equal(params["stack"]["gain"], 1.0)


def test_average_starts_quickly_and_is_bounded_by_its_decay():
    average = {"w": jnp.zeros(())}
    for update in (1, 2):
        average = updated_average(average, {"w": jnp.ones(())}, decay=0.999, updates=jnp.int32(update))
    np.testing.assert_allclose(average["w"], 1 - (2 / 11) * (3 / 12), rtol=1e-6)
    late = updated_average({"w": jnp.zeros(())}, {"w": jnp.ones(())}, decay=0.9, updates=jnp.int32(10**6))
    np.testing.assert_allclose(late["w"], 0.1, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"b1": 1.0}, {"eps": 0.0}, {"clip_norm": -1.0}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        AdamW(**wrong)
