"""Optimizers against formulas and other implementations; the peers: tests/goldens/test_optim_trajectories.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.optim.optimizers import EVERYTHING, LAMB, NEVER, AdamW, FairseqAdam, Muon, NovoGrad, ScaledAdam
from asr_jax.optim.schedules import RunLength, WarmupHoldDecay

LENGTH = RunLength(10, 5)
CONSTANT = WarmupHoldDecay(peak_lr=0.1, warmup_updates=0, decay="none")
RNG = np.random.default_rng(0)
PARAMS = {
    "encoder": {
        "in": {"kernel": RNG.normal(size=(4, 3)), "bias": RNG.normal(size=3)},
        "layers": {"out": {"kernel": RNG.normal(size=(2, 4, 3)), "gain": RNG.normal(size=2)}},
    },
    "heads_ctc": {"output": {"kernel": RNG.normal(size=(3, 5))}},
}
PARAMS = jax.tree.map(jnp.float32, PARAMS)
ALL = [AdamW, FairseqAdam, NovoGrad, LAMB, Muon, ScaledAdam]


def gradients(step, params=PARAMS):
    rng = np.random.default_rng(step)
    return jax.tree.map(lambda p: jnp.float32(rng.normal(0, 1 + step, p.shape)), params)


def trained(settings, params=PARAMS, steps=5, grads=gradients):
    """Parameters after some steps."""
    updater = settings.build(LENGTH)
    updater.check(params)
    state, update = jax.jit(updater.init)(params), stepping(updater)
    for step in range(steps):
        params, state = update(grads(step, params), state, params, updates=step)
    return params


def stepping(updater):
    """Parameters and state after a step, in one program."""

    def step(grads, state, params, **more):
        changes, state = updater.update(grads, state, params, **more)
        return optax.apply_updates(params, changes), state

    return jax.jit(step)


def test_adamw_follows_the_formula_clips_by_global_norm_and_decays_kernels_only():
    optimizer = AdamW(CONSTANT, weight_decay=0.5, clip_at=1.0).build(LENGTH)
    params = {
        "dense": {"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([3.0])},
        "stack": {"gain": jnp.ones((2, 2))},
    }
    state, update = optimizer.init(params), stepping(optimizer)
    m = dict.fromkeys(("kernel", "bias", "gain"), 0.0)
    v = dict(m)
    ours = {"kernel": np.array([[1.0, -2.0]]), "bias": np.array([3.0]), "gain": np.ones((2, 2))}
    for t in (1, 2, 3):
        grads = {"kernel": np.array([[3.0, 4.0]]) * t, "bias": np.array([12.0]), "gain": np.zeros((2, 2))}
        tree = {"dense": {"kernel": grads["kernel"], "bias": grads["bias"]}, "stack": {"gain": grads["gain"]}}
        params, state = update(jax.tree.map(jnp.float32, tree), state, params, updates=t - 1)
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


def test_lamb_is_optax_lamb_where_everything_decays_and_layers_are_apart():
    params = {"a": {"kernel": PARAMS["encoder"]["in"]["kernel"]}, "b": {"bias": PARAMS["encoder"]["in"]["bias"]}}
    found = trained(LAMB(CONSTANT, clip_at=0.0, decay_factors=EVERYTHING, weight_decay=0.02), params)
    theirs = optax.lamb(0.1, 0.9, 0.999, 1e-9, weight_decay=0.02)
    expected, state, update = params, jax.jit(theirs.init)(params), stepping(theirs)
    for step in range(5):
        expected, state = update(gradients(step, params), state, expected)
    for path, leaf in flatten(found).items():
        np.testing.assert_allclose(leaf, flatten(expected)[path], rtol=2e-5, err_msg=path)


def test_novograd_is_not_optax_novograd():
    params = {"kernel": PARAMS["encoder"]["in"]["kernel"]}
    theirs = optax.novograd(0.1, b1=0.95, b2=0.0)
    first, _ = stepping(theirs)(gradients(0, params), jax.jit(theirs.init)(params), params)
    ours = trained(NovoGrad(CONSTANT, weight_decay=0.0, b2=0.0), params, steps=1)
    assert np.abs(ours["kernel"] - first["kernel"]).max() < 1e-5  # the first step
    assert np.abs(trained(NovoGrad(CONSTANT, weight_decay=0.0), params)["kernel"] - ours["kernel"]).max() > 0.1
    theirs = optax.novograd(0.1)
    state, expected, update = jax.jit(theirs.init)(params), params, stepping(theirs)
    for step in range(3):
        expected, state = update(gradients(step, params), state, expected)
    assert np.abs(trained(NovoGrad(CONSTANT), params, steps=3)["kernel"] - expected["kernel"]).max() > 0.01


@pytest.mark.parametrize("cls", ALL)
def test_layers_of_a_stack_are_tensors_of_their_own(cls):
    """A stack of two layers goes where the two go when each is a parameter."""
    stacked = {"layers": {"kernel": PARAMS["encoder"]["layers"]["out"]["kernel"], "bias": jnp.ones((2, 3))}}
    apart = {
        name: {k: jnp.asarray(np.asarray(v)[i]) for k, v in stacked["layers"].items()} for i, name in enumerate("ab")
    }

    def grads_of_stack(step, _):
        both = (gradients(step, apart)[name] for name in "ab")
        return jax.tree.map(lambda a, b: jnp.asarray(np.stack([a, b])), *both)

    settings = cls(schedule=CONSTANT, clip="tensor_norm", clip_at=1.5)
    found = trained(settings, stacked, grads=lambda step, params: {"layers": grads_of_stack(step, params)})
    expected = trained(settings, apart)
    for i, name in enumerate("ab"):
        for key in ("kernel", "bias"):
            np.testing.assert_allclose(np.asarray(found["layers"][key])[i], expected[name][key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", ALL)
def test_every_optimizer_makes_a_loss_smaller(cls):
    target = jax.tree.map(lambda p: np.asarray(p) + np.float32(0.5), PARAMS)

    def loss(params):
        return sum(jnp.sum(jnp.square(a - b)) for a, b in zip(*map(jax.tree.leaves, (params, target)), strict=True))

    schedule = WarmupHoldDecay(peak_lr=0.02, warmup_updates=0, decay="none")
    gradient, of = jax.jit(jax.grad(loss)), jax.jit(loss)
    found = trained(cls(schedule=schedule, weight_decay=0.0), steps=100, grads=lambda _, params: gradient(params))
    assert of(found) < 0.3 * of(PARAMS)


def test_clipping_by_norm_of_all_by_tensor_and_by_value():
    grads = {
        "a": jnp.array([3.0, 4.0]),
        "b": jnp.array([0.3, 12.0]),
        "layers": {"c": jnp.array([[6.0, 8.0], [0.1, 0]])},
    }
    params = jax.tree.map(jnp.zeros_like, grads)

    def clipped(clip, clip_at):
        """The momentum after a step is the clipped gradient: decay 0, no normalisation."""
        settings = AdamW(CONSTANT, clip=clip, clip_at=clip_at, b1=0.0, decay_factors=(("rest", 0.0),)).build(LENGTH)
        _, state = stepping(settings)(grads, jax.jit(settings.init)(params), params, updates=0)
        return jax.device_get(state[0][0].mu)

    norm = np.sqrt(25 + 0.09 + 144 + 100 + 0.01)
    np.testing.assert_allclose(clipped("global_norm", 2.0)["b"], grads["b"] * 2 / norm, rtol=1e-6)
    by_tensor = clipped("tensor_norm", 2.0)
    np.testing.assert_allclose(by_tensor["a"], [1.2, 1.6], rtol=1e-6)
    np.testing.assert_allclose(by_tensor["layers"]["c"], [[1.2, 1.6], [0.1, 0]], rtol=1e-6)
    np.testing.assert_allclose(clipped("value", 2.0)["b"], [0.3, 2.0])
    np.testing.assert_array_equal(clipped("value", 0.0)["b"], grads["b"])


def test_rates_and_decay_by_rules_and_thawing():
    settings = AdamW(
        CONSTANT, weight_decay=0.0, lr_factors=(("encoder/layers/.*", 0.5), ("rest", 1.0)),
        freeze_updates=(("heads_.*", 2), ("rest", 0)),
    )  # fmt: skip
    plain, found = trained(AdamW(CONSTANT, weight_decay=0.0), steps=1), trained(settings, steps=1)
    plain, found, before = jax.device_get((plain, found, PARAMS))
    moved = jax.tree.map(lambda a, b: a - b, found, before)
    moved_plain = jax.tree.map(lambda a, b: a - b, plain, before)
    stack = moved["encoder"]["layers"]["out"]["kernel"], moved_plain["encoder"]["layers"]["out"]["kernel"]
    np.testing.assert_allclose(stack[0], 0.5 * stack[1], rtol=1e-4)
    for steps, still in ((1, True), (2, True), (3, False)):
        head = trained(settings, steps=steps)["heads_ctc"]["output"]["kernel"]
        assert np.array_equal(head, PARAMS["heads_ctc"]["output"]["kernel"]) == still


def test_what_is_frozen_gathers_no_momentum_of_its_decay():
    """NovoGrad's decay is part of its momentum: thawed parameters must move as those that were never frozen."""

    def the_same(_, params):
        return jax.tree.map(lambda p: jnp.asarray(np.ones(p.shape, np.float32)), params)

    frozen = NovoGrad(CONSTANT, weight_decay=0.5, freeze_updates=(("heads_.*", 3), ("rest", 0)))
    head = trained(frozen, steps=4, grads=the_same)["heads_ctc"]["output"]["kernel"]
    never = NovoGrad(CONSTANT, weight_decay=0.5)
    at_once = trained(never, steps=1, grads=the_same)["heads_ctc"]["output"]["kernel"]
    np.testing.assert_allclose(head, at_once, rtol=1e-5)


def test_what_never_changes_is_apart():
    updater = AdamW(freeze_updates=(("encoder/.*", NEVER), ("rest", 0.0))).build(LENGTH)
    kept, frozen = updater.split(PARAMS)
    assert set(flatten(kept)) == {"heads_ctc/output/kernel"}
    assert set(flatten(frozen)) == set(flatten(PARAMS)) - set(flatten(kept))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((("encoder/.*", 1.0),), "heads_ctc/output/kernel is named by no rule"),
        ((("encoder/.*", 1.0), (".*kernel", 0.5), ("rest", 0.0)), "is named by encoder/.* and .*kernel"),
        ((("enkoder/.*", 1.0), ("rest", 0.0)), "enkoder/.* names no parameter"),
        ((("encoder/(.*", 1.0), ("rest", 0.0)), "is not a regular expression"),
        ((("rest", 1.0), ("rest", 0.0)), "rest is there twice"),
    ],
)
def test_rules_that_do_not_name_each_parameter_once(rules, said):
    for name in ("lr_factors", "decay_factors", "freeze_updates"):
        with pytest.raises(UserError) as error:
            AdamW(**{name: rules}).build(LENGTH).check(PARAMS)
        assert said in str(error.value)
        assert f"optim.{name}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("lr_factors", -1.0), ("decay_factors", float("nan")), ("freeze_updates", -2.0)]
)
def test_values_of_rules_that_mean_nothing_are_named(name, value):
    with pytest.raises(ValueError, match=rf"{name}: 'a' has {value}; expected 0 or more"):
        AdamW(**{name: (("a", value), ("rest", 0.0))})


def test_that_nothing_would_be_trained_is_an_error():
    with pytest.raises(UserError, match="nothing would be trained"):
        AdamW(freeze_updates=(("rest", NEVER),)).build(LENGTH).check(PARAMS)


@pytest.mark.parametrize("cls", ALL)
def test_every_array_of_the_state_can_be_saved(cls):
    """Orbax refuses arrays without a value; models have scalars."""
    state = cls(schedule=CONSTANT).build(LENGTH).init(PARAMS | {"scale": jnp.zeros(()), "scales": jnp.ones(3)})
    assert all(leaf.size for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("wrong", [{"b1": 1.0}, {"eps": 0.0}, {"clip_at": -1.0}, {"weight_decay": float("nan")}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        AdamW(**wrong)


def test_scaled_adam_has_no_decay():
    with pytest.raises(ValueError, match="expected 0"):
        ScaledAdam(weight_decay=0.1)
