"""Optimizers and schedules against trajectories of other systems, with the settings of each case's file."""

import json
import re
from dataclasses import field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from asr_jax.core.settings import settings
from asr_jax.optim.optimizers import FairseqAdam, NovoGrad, ScaledAdam
from asr_jax.optim.scaled_adam import Options, scaled_adam
from asr_jax.optim.schedules import Eden, Polynomial, RunLength, TriStage, WarmupHoldDecay
from tests.support import GOLDENS, GoldenCase, assert_close, assert_within, golden_cases, max_abs, relative

pytestmark = pytest.mark.golden

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def numbers(text, *names, count=1):
    """Parses the numbers after the first matching name in text such as `lr .05 betas (.95,.25)`."""
    for name in names:
        if found := re.search(rf"\b{name}\s+\(?({NUMBER}(?:[\s,]+{NUMBER}){{{count - 1}}})", text):
            values = [float(value) for value in re.findall(NUMBER, found[1])]
            return values if count > 1 else values[0]
    return None


def given(**values):
    return {name: value for name, value in values.items() if value is not None}


def cases_in(case):
    """Returns the settings, as text, of each trajectory in a file: from `cases`, or from `kw` (`name: text; name:
    text`)."""
    if "cases" in case.info:
        return case.info["cases"]
    text = case.info["kw"]
    return dict(part.strip().split(": ", 1) for part in text.split(";"))


def betas(words):
    found = numbers(words, "betas", count=2)
    return {} if found is None else {"b1": found[0], "b2": found[1]}


def steps(arrays, prefix):
    """Returns the number of gradients of a tensor."""
    count = 0
    while f"{prefix}_{count}" in arrays:
        count += 1
    return count


def cases(family, name):
    """Returns the shared case, and the case that scripts/goldens/optimizers.py wrote."""
    path = Path(__file__).parent / "trajectories" / f"{name}.json"
    own = pytest.param(GoldenCase(path, json.loads(path.read_text())), id=f"{name}-own")
    return [*golden_cases(family, name), own]


def holds_last_weights_only(arrays, weights):
    """Returns whether all weights of a trajectory are equal.

    The snapshots of such a file were one array, written after all steps. The earlier weights are unknown.
    """
    return all(np.array_equal(arrays[name], arrays[weights[0]]) for name in weights)


def trajectory(settings, rates):
    """Returns a function of initial weights and gradients of all steps [steps ...], by tensor.

    It returns weights and optimizer states after each step [steps ...].
    """
    table = jnp.asarray(rates, jnp.float32)
    updater = replace(settings.build(RunLength(1, 1)), rate=lambda step: table[step])

    def step(before, given):
        (params, state), (number, grads) = before, given
        changes, state = updater.update(grads, state, params, updates=number)
        after = optax.apply_updates(params, changes), state
        return after, after

    @jax.jit
    def run(first, grads):
        return jax.lax.scan(step, (first, updater.init(first)), (jnp.arange(len(table)), grads))[1]

    return run


def gradients(arrays, name, tensors, num_steps):
    return {t: np.stack([arrays[f"{name}/g{t}_{i}"] for i in range(num_steps)]) for t in tensors}


def follows(settings, arrays, rates, tensors, *, name, weight):
    """Checks a trajectory if its initial weights are known. Returns whether they are."""
    if all(holds_last_weights_only(arrays, [weight(t, i) for i in range(len(rates) + 1)]) for t in tensors):
        return False
    first = {t: arrays[weight(t, 0)] for t in tensors}
    params, _ = trajectory(settings, rates)(first, gradients(arrays, name, tensors, len(rates)))
    for t in tensors:
        for step, found in enumerate(np.asarray(params[t]), start=1):
            assert_within(relative(found, arrays[weight(t, step)]), 1e-5, what=name)
    return True


def skip_unknown(case, followed):
    assert followed
    if not all(followed):
        pytest.skip(f"{case.path}: every snapshot has the last weights, the initial weights are unknown")


@pytest.mark.parametrize("case", cases("dle_quartznet", "novograd"))
def test_novograd_follows_nvidia(case):
    arrays = case.arrays()
    for name, words in cases_in(case).items():
        tensors = sorted({key.split("/")[1].split("_")[0][1:] for key in arrays if key.startswith(f"{name}/g")})
        settings = NovoGrad(
            clip_at=0.0, weight_decay=numbers(words, "wd") or 0.0, grad_averaging="grad_averaging" in words,
            amsgrad="amsgrad" in words, **betas(words), **given(eps=numbers(words, "eps")),
        )  # fmt: skip
        rates = [numbers(words, "lr")] * steps(arrays, f"{name}/g{tensors[0]}")
        assert rates, name
        weight = lambda t, i, name=name: f"{name}/w{t}_{i}"  # noqa: E731
        run, grads = trajectory(settings, rates), gradients(arrays, name, tensors, len(rates))
        first = {t: arrays[weight(t, 0)] for t in tensors}
        last_only = all(holds_last_weights_only(arrays, [weight(t, i) for i in range(len(rates) + 1)]) for t in tensors)
        if last_only:
            # Each weight after the last step is a + b · its initial value. This is solved for the initial value.
            zeros, ones = ({t: np.full_like(w, value) for t, w in first.items()} for value in (0.0, 1.0))
            from_zeros, from_ones = (
                {t: w[-1] for t, w in jax.device_get(run(values, grads)[0]).items()} for values in (zeros, ones)
            )
            first = {t: (w - from_zeros[t]) / (from_ones[t] - from_zeros[t]) for t, w in first.items()}
        params, (inner, *_) = jax.device_get(run(first, grads))
        for step in range(len(rates) - 1 if last_only else 0, len(rates)):
            for t in tensors:
                assert_within(relative(params[t][step], arrays[weight(t, step + 1)]), 1e-5)
                assert_within(relative(inner.momentum[t][step], arrays[f"{name}/m{t}_{step + 1}"]), 1e-5)
                squares = np.reshape(inner.squares[t][step], ())
                assert_close(squares, arrays[f"{name}/v{t}_{step + 1}"], rtol=1e-5)


@pytest.mark.parametrize("case", cases("fairseq_w2v2", "adam_steps"))
def test_fairseq_adam_follows_fairseq(case):
    arrays, followed = case.arrays(), []
    for name, words in cases_in(case).items():
        tensors = sorted({key.split("/")[1].rsplit("_", 1)[0][1:] for key in arrays if key.startswith(f"{name}/g")})
        settings = FairseqAdam(
            clip_at=0.0, weight_decay=numbers(words, "wd") or 0.0, **betas(words), **given(eps=numbers(words, "eps"))
        )
        rates = [numbers(words, "lr")] * steps(arrays, f"{name}/g{tensors[0]}")
        assert rates, name
        weight = lambda t, i, name=name: f"{name}/{t}_{i}"  # noqa: E731
        followed.append(follows(settings, arrays, rates, tensors, name=name, weight=weight))
    skip_unknown(case, followed)


@settings
class ScaledAdamOfCase(ScaledAdam):
    options: dict = field(default_factory=dict)
    """Constants of the case that are not settings."""

    def changes(self):
        given = Options(self.b1, self.b2, self.eps, self.clipping_scale)
        return scaled_adam(given._replace(**self.options))


@pytest.mark.parametrize("case", cases("icefall_zipformer", "scaled_adam"))
def test_scaled_adam_and_eden_follow_icefall(case):
    arrays, text = case.arrays(), case.info["eden"]
    every = int(re.search(r"st//(\d+)", text)[1])
    period, followed = re.search(r"size_update_period (\d+)", case.info["note"]), []
    for name, words in cases_in(case).items():
        tensors = sorted({key.split("/")[1].split("_")[0][1:] for key in arrays if key.startswith(f"{name}/g")})
        clipping = re.search(rf"clipping_scale ({NUMBER})(?: period (\d+))?", words)
        optimizer = ScaledAdamOfCase(
            schedule=Eden(
                peak_lr=numbers(words, "lr"), decay_updates=numbers(text, "lr_batches"),
                decay_epochs=numbers(text, "lr_epochs"),
                **given(
                    warmup_updates=numbers(text, "warmup_batches", "warmup"), warmup_start=numbers(text, "warmup_start")
                ),
            ),
            clipping_scale=float(clipping[1]) if clipping else 0.0, **betas(words), **given(eps=numbers(words, "eps")),
            options=given(
                size_period=int(period[1]) if period else None,
                clipping_period=int(clipping[2]) if clipping and clipping[2] else None,
                scalar_factor=numbers(words, "scalar_lr_scale"), min_rms=numbers(words, "param_min_rms"),
                max_rms=numbers(words, "param_max_rms"), scalar_max=numbers(words, "scalar_max"),
            ),
        )  # fmt: skip
        expected = arrays[f"{name}/lr_used"]
        assert len(expected) == steps(arrays, f"{name}/g{tensors[0]}")
        schedule = optimizer.schedule.build(RunLength(len(expected), every))
        rates = jax.jit(jax.vmap(schedule))(np.arange(len(expected)))
        assert_close(rates, expected, rtol=1e-5)
        weight = lambda t, i, name=name: f"{name}/w{t}_{i}"  # noqa: E731
        followed.append(follows(optimizer, arrays, rates, tensors, name=name, weight=weight))
    skip_unknown(case, followed)


def documents(family, name):
    path = GOLDENS / family / f"{name}.json"
    if not path.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no {path}: set ASR_JAX_GOLDENS"))]
    return [pytest.param(json.loads(path.read_text()), id=name)]


@pytest.mark.parametrize("info", documents("icefall_zipformer", "eden"))
def test_eden_at_far_updates(info):
    for name, points in info["epoch_batch_lr"].items():
        words = info["args"][name]
        batches, epochs = ([float(v) for v in re.findall(NUMBER, re.split("warmup", words)[0])] + [0.0])[:2]
        warmup = re.search(rf"warmup ({NUMBER})(?:/| start )({NUMBER})", words)
        settings = Eden(
            peak_lr=info["base_lr"], decay_updates=batches, decay_epochs=epochs,
            **({"warmup_updates": float(warmup[1]), "warmup_start": float(warmup[2])} if warmup else {}),
        )  # fmt: skip
        epochs, batches, expected = np.array(points, np.float32).T
        # The length of a run in which this update is in this epoch.
        factor = jax.jit(jax.vmap(lambda *at, eden=settings: eden.factor(*at, RunLength(1, 1))))(batches, epochs + 1)
        assert_close(settings.peak_lr * factor, expected, rtol=1e-5, what=name)


@pytest.mark.parametrize("info", documents("dle_quartznet", "lr_policy"))
def test_quartznet_policies(info):
    for name, found in info["res"].items():
        args = found["args"]
        settings = WarmupHoldDecay(
            peak_lr=args["initial_lr"], min_lr=args["min_lr"], warmup_updates=0, warmup_epochs=args["warmup_epochs"],
            hold_epochs=args["hold_epochs"], power=2.0, gamma=args.get("exp_gamma", 1.0),
            decay="exponential" if "exp_gamma" in args else "polynomial",
        )  # fmt: skip
        per_epoch = args["steps_per_epoch"]
        rate = settings.build(RunLength((args.get("num_epochs") or 1) * per_epoch, per_epoch))
        rates = jax.jit(jax.vmap(rate))(np.arange(len(found["lr"])))
        assert_within(max_abs(rates, found["lr"]), 1e-6 * args["initial_lr"], what=name)


@pytest.mark.parametrize("info", documents("dle_w2v2", "lr_policies"))
def test_wav2vec_policies(info):
    args, shared = info["args"], {}
    length = RunLength(args["num_steps"], 1)
    shared = {
        "peak_lr": args["lr"],
        "start_share": args["initial_lr_scale"],
        "final_share": args["final_lr_scale"],
    }
    warmup, hold = args["warmup_steps"], args["hold_steps"]
    names = [name for name in info if name.startswith(("poly", "exp"))]
    assert names
    for name in names:
        if power := re.fullmatch(r"poly_p(\d+(?:\.\d+)?)", name):
            settings = Polynomial(**shared, warmup_updates=warmup, hold_updates=hold, power=float(power[1]))
        else:
            decay = re.fullmatch(r"exp_decay0?(\d+)", name)
            settings = TriStage(
                **shared, warmup_share=warmup / length.num_updates, hold_share=hold / length.num_updates,
                gamma=float(f"0.{decay[1]}") if decay else 0.0,
            )  # fmt: skip
        rate = settings.build(length)
        rates = jax.jit(jax.vmap(rate))(np.array(info["steps"]) - 1)
        assert_within(relative(rates, info[name]), 1e-6, what=name)
