"""Optimizers compared with formulas and with optax; tests/goldens/test_optim_trajectories.py has other systems."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.optim.optimizers import EVERYTHING, LAMB, NEVER, AdamW, FairseqAdam, Muon, NovoGrad, ScaledAdam
from asr_jax.optim.schedules import RunLength, WarmupHoldDecay
from tests.support import assert_close

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
PARAMS = jax.tree.map(np.float32, PARAMS)
ALL = [AdamW, FairseqAdam, NovoGrad, LAMB, Muon, ScaledAdam]


def gradients(params=PARAMS, steps=5):
    """Random gradients that grow from step to step, as one array per parameter."""
    rng = np.random.default_rng(0)
    scale = np.arange(1, steps + 1)
    return jax.tree.map(
        lambda p: (rng.normal(size=(steps, *p.shape)) * scale.reshape(-1, *[1] * p.ndim)).astype(np.float32), params
    )


def trajectory(updater, params, grads):
    """Returns the parameters after each step of an `Updater` or of an optax optimizer."""

    def step(carry, given):
        (params, state), (grads, number) = carry, given
        more = {} if isinstance(updater, optax.GradientTransformation) else {"updates": number}
        changes, state = updater.update(grads, state, params, **more)
        params = optax.apply_updates(params, changes)
        return (params, state), params

    numbers = jnp.arange(len(jax.tree.leaves(grads)[0]))
    return jax.lax.scan(step, (params, updater.init(params)), (grads, numbers))[1]


def trained(*settings, params=PARAMS, grads=None):
    """Returns the parameters after each step for each of the settings, computed by one program."""
    updaters = [each.build(LENGTH) for each in settings]
    for updater in updaters:
        updater.check(params)
    run = jax.jit(lambda *given: [trajectory(updater, *given) for updater in updaters])
    return jax.device_get(run(params, gradients(params) if grads is None else grads))


def test_adamw_follows_the_formula_clips_by_global_norm_and_decays_kernels_only():
    ours = {"kernel": np.array([[1.0, -2.0]]), "bias": np.array([3.0]), "gain": np.ones((2, 2))}
    steps = np.arange(1.0, 4)
    drawn = {
        "kernel": np.array([[3.0, 4.0]]) * steps[:, None, None],
        "bias": np.full((3, 1), 12.0),
        "gain": np.zeros((3, 2, 2)),
    }
    tree, grads = (
        jax.tree.map(np.float32, {"dense": {"kernel": each["kernel"], "bias": each["bias"]}, "stack": each["gain"]})
        for each in (ours, drawn)
    )
    (found,) = trained(AdamW(CONSTANT, weight_decay=0.5, clip_at=1.0), params=tree, grads=grads)
    m = dict.fromkeys(ours, 0.0)
    v = dict(m)
    for t in (1, 2, 3):
        norm = np.sqrt(sum((g[t - 1] ** 2).sum() for g in drawn.values()))
        for name, grad in drawn.items():
            g = grad[t - 1] * min(1.0, 1.0 / norm)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.98 * v[name] + 0.02 * g**2
            step = m[name] / (1 - 0.9**t) / (np.sqrt(v[name] / (1 - 0.98**t)) + 1e-8)
            ours[name] = ours[name] - 0.1 * (step + (0.5 * ours[name] if name == "kernel" else 0.0))
    assert_close(found["dense"]["kernel"][-1], ours["kernel"], rtol=1e-5)
    assert_close(found["dense"]["bias"][-1], ours["bias"], rtol=1e-5)
    np.testing.assert_array_equal(found["stack"][-1], 1.0)


@pytest.mark.parametrize(("b2", "averaging"), [(0.0, False), (0.25, True)])
def test_novograd_follows_the_formula(b2, averaging):
    """Ginsburg et al. 2019, algorithm 1, on two tensors: each has a squared norm, and decay is part of the momentum."""
    params, grads = PARAMS["encoder"]["in"], gradients(PARAMS["encoder"]["in"])
    settings = NovoGrad(CONSTANT, weight_decay=0.01, b2=b2, grad_averaging=averaging)
    (found,) = trained(settings, params=params, grads=grads)
    for name, first in params.items():
        w, m, v = np.float64(first), 0.0, None
        for step, g in enumerate(np.float64(grads[name])):
            v = np.sum(g**2) if v is None else b2 * v + (1 - b2) * np.sum(g**2)
            m = 0.95 * m + (g / (np.sqrt(v) + 1e-8) + 0.01 * w) * (0.05 if averaging else 1.0)
            w = w - 0.1 * m
            assert_close(found[name][step], w, rtol=1e-5, what=f"{name} {step}")


def test_lamb_is_optax_lamb_where_everything_decays_and_layers_are_apart():
    params = {"a": {"kernel": PARAMS["encoder"]["in"]["kernel"]}, "b": {"bias": PARAMS["encoder"]["in"]["bias"]}}
    ours = LAMB(CONSTANT, clip_at=0.0, decay_factors=EVERYTHING, weight_decay=0.02).build(LENGTH)
    theirs = optax.lamb(0.1, 0.9, 0.999, 1e-9, weight_decay=0.02)
    run = jax.jit(lambda *given: [flatten(trajectory(each, *given)) for each in (ours, theirs)])
    found, expected = run(params, gradients(params))
    for path, leaf in found.items():
        assert_close(leaf, expected[path], rtol=2e-5, what=path)


@pytest.mark.parametrize("cls", ALL)
def test_layers_of_a_stack_are_tensors_of_their_own(cls):
    """A stack of two layers is trained as two separate parameters are."""
    stacked = {"kernel": PARAMS["encoder"]["layers"]["out"]["kernel"], "bias": np.ones((2, 3), np.float32)}
    apart = {name: {key: leaf[i] for key, leaf in stacked.items()} for i, name in enumerate("ab")}
    of_each = gradients(apart)
    of_stack = {"layers": jax.tree.map(lambda a, b: np.stack([a, b], axis=1), of_each["a"], of_each["b"])}
    updater = cls(schedule=CONSTANT, clip="tensor_norm", clip_at=1.5).build(LENGTH)
    run = jax.jit(lambda *both: [trajectory(updater, *given) for given in both])
    found, expected = jax.device_get(run(({"layers": stacked}, of_stack), (apart, of_each)))
    for i, name in enumerate("ab"):
        for key in ("kernel", "bias"):
            assert_close(found["layers"][key][:, i], expected[name][key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", ALL)
def test_every_optimizer_makes_a_loss_smaller(cls):
    schedule = WarmupHoldDecay(peak_lr=0.02, warmup_updates=0, decay="none")
    updater = cls(schedule=schedule, weight_decay=0.0).build(LENGTH)

    @jax.jit
    def losses(params, target):
        def loss(params):
            return sum(jnp.sum(jnp.square(a - b)) for a, b in zip(*map(jax.tree.leaves, (params, target)), strict=True))

        def step(carry, number):
            value, grads = jax.value_and_grad(loss)(carry[0])
            changes, state = updater.update(grads, carry[1], carry[0], updates=number)
            return (optax.apply_updates(carry[0], changes), state), value

        return jax.lax.scan(step, (params, updater.init(params)), jnp.arange(101))[1]

    params = {"layers": PARAMS["encoder"]["layers"], "bias": PARAMS["encoder"]["in"]["bias"]}
    found = np.asarray(losses(params, jax.tree.map(lambda p: p + np.float32(0.5), params)))
    assert found[-1] < 0.1 * found[0]


def test_clipping_by_norm_of_all_by_tensor_and_by_value():
    """With b1 = 0, the momentum after a step is the clipped gradient."""
    grads = {
        "a": np.float32([3, 4]), "b": np.float32([0.3, 12]), "layers": {"c": np.float32([[6, 8], [0.1, 0]])}
    }  # fmt: skip
    params = jax.tree.map(np.zeros_like, grads)
    kinds = (("global_norm", 2.0), ("tensor_norm", 2.0), ("value", 2.0), ("value", 0.0))

    @jax.jit
    def momenta(grads):
        def momentum(clip, clip_at):
            settings = AdamW(CONSTANT, clip=clip, clip_at=clip_at, b1=0.0, decay_factors=(("rest", 0.0),)).build(LENGTH)
            return settings.update(grads, settings.init(params), params, updates=0)[1][0][0].mu

        return [momentum(*kind) for kind in kinds]

    by_all, by_tensor, by_value, by_none = momenta(grads)
    norm = np.sqrt(25 + 0.09 + 144 + 100 + 0.01)
    assert_close(by_all["b"], grads["b"] * 2 / norm, rtol=1e-6)
    assert_close(by_tensor["a"], [1.2, 1.6], rtol=1e-6)
    assert_close(by_tensor["layers"]["c"], [[1.2, 1.6], [0.1, 0]], rtol=1e-6)
    assert_close(by_value["b"], [0.3, 2.0])
    np.testing.assert_array_equal(by_none["b"], grads["b"])


def test_rates_and_decay_by_rules_and_thawing():
    settings = AdamW(
        CONSTANT, weight_decay=0.0, lr_factors=(("encoder/layers/.*", 0.5), ("rest", 1.0)),
        freeze_updates=(("heads_.*", 2), ("rest", 0)),
    )  # fmt: skip
    plain, found = map(flatten, trained(AdamW(CONSTANT, weight_decay=0.0), settings))
    before, name = flatten(PARAMS), "encoder/layers/out/kernel"
    assert_close(found[name][0] - before[name], 0.5 * (plain[name][0] - before[name]), rtol=1e-4)
    head = found["heads_ctc/output/kernel"] == before["heads_ctc/output/kernel"]
    assert head[:2].all()
    assert not head[2].any()


def test_what_is_frozen_gathers_no_momentum_of_its_decay():
    """NovoGrad's decay is part of its momentum. After `freeze_updates`, parameters must change as if never frozen."""
    never = NovoGrad(CONSTANT, weight_decay=0.5)
    frozen = replace(never, freeze_updates=(("heads_.*", 3), ("rest", 0)))
    the_same = jax.tree.map(lambda p: np.ones((4, *p.shape), np.float32), PARAMS)
    later, at_once = (each["heads_ctc"]["output"]["kernel"] for each in trained(frozen, never, grads=the_same))
    assert_close(later[3], at_once[0], rtol=1e-5)


def test_what_never_changes_is_apart():
    updater = AdamW(freeze_updates=(("encoder/.*", NEVER), ("rest", 0.0))).build(LENGTH)
    kept, frozen = updater.split(PARAMS)
    assert set(flatten(kept)) == {"heads_ctc/output/kernel"}
    assert set(flatten(frozen)) == set(flatten(PARAMS)) - set(flatten(kept))


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ((("encoder/.*", 1.0),), ["heads_ctc/output/kernel"]),
        ((("encoder/.*", 1.0), (".*kernel", 0.5), ("rest", 0.0)), ["encoder/in/kernel", "encoder/.*", ".*kernel"]),
        ((("enkoder/.*", 1.0), ("rest", 0.0)), ["enkoder/.*"]),
        ((("encoder/(.*", 1.0), ("rest", 0.0)), ["encoder/(.*"]),
        ((("rest", 1.0), ("rest", 0.0)), ["rest occurs twice"]),
    ],
)
def test_rules_that_do_not_name_each_parameter_once(rules, parts):
    for name in ("lr_factors", "decay_factors", "freeze_updates"):
        with pytest.raises(UserError) as error:
            AdamW(**{name: rules}).build(LENGTH).check(PARAMS)
        assert [part for part in (f"optim.{name}", *parts) if part not in str(error.value)] == []


@pytest.mark.parametrize(
    ("name", "value"), [("lr_factors", -1.0), ("decay_factors", float("nan")), ("freeze_updates", -2.0)]
)
def test_values_of_rules_that_mean_nothing_are_named(name, value):
    with pytest.raises(ValueError, match=rf"{name}.*'a'.*{value}"):
        AdamW(**{name: (("a", value), ("rest", 0.0))})


def test_that_nothing_would_be_trained_is_an_error():
    with pytest.raises(UserError, match="nothing would be trained"):
        AdamW(freeze_updates=(("rest", NEVER),)).build(LENGTH).check(PARAMS)


@pytest.mark.parametrize("cls", ALL)
def test_every_array_of_the_state_can_be_saved(cls):
    """Orbax cannot save empty arrays, and models have scalars."""
    params = PARAMS | {"scale": np.zeros((), np.float32), "scales": np.ones(3, np.float32)}
    state = jax.eval_shape(cls(schedule=CONSTANT).build(LENGTH).init, params)
    assert all(leaf.size for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("wrong", [{"b1": 1.0}, {"eps": 0.0}, {"clip_at": -1.0}, {"weight_decay": float("nan")}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        AdamW(**wrong)


def test_scaled_adam_has_no_decay():
    with pytest.raises(ValueError, match="expected 0"):
        ScaledAdam(weight_decay=0.1)
