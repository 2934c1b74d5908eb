"""Units of icefall's zipformer: activations, norm, down- and upsampling, positions, schedule, regularisers."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import OUTPUTS, GoldenCase, assert_outputs, assert_within, golden_cases, max_abs, relative

from asr_jax.kernels.swoosh.api import swoosh_l, swoosh_r
from asr_jax.nn.gradients import limit_values, penalize_large
from asr_jax.nn.normalization import bias_norm
from asr_jax.nn.positions import compact_positions
from asr_jax.nn.regularizers import balance, whiten
from asr_jax.nn.schedules import piecewise_linear
from asr_jax.nn.zipformer.subsampling import Downsample, upsample

pytestmark = [pytest.mark.golden, pytest.mark.parametrize("case", golden_cases("icefall_zipformer", "units*"))]
YES = jnp.array(True)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d*\.?\d+", text)]


def named(text: str) -> dict[str, float]:
    """Parses text such as `groups 1 limit 1.5` to a dictionary."""
    return {name: float(value) for name, value in re.findall(r"([a-z_]+) (-?\d*\.?\d+)", text)}


def check_gradients(arrays: dict, regularised: dict[str, Any], x: Any, w: Any) -> None:
    """Checks gradients of all functions to 1e-3 relative and 1e-4 absolute. One program computes them."""

    @jax.jit
    def gradients(x: Any, w: Any) -> Any:
        return {name: jax.grad(lambda x, f=f: jnp.sum(f(x) * w))(x) for name, f in regularised.items()}

    for name, actual in gradients(x, w).items():
        assert_outputs(actual, arrays[f"{name}/dx"], what=f"{name}/dx")
        assert_within(relative(actual, arrays[f"{name}/dx"]), 1e-3)


@pytest.mark.parametrize(("name", "swoosh"), [("swoosh_l", swoosh_l), ("swoosh_r", swoosh_r)])
def test_swoosh(case: GoldenCase, name: str, swoosh: Any) -> None:
    arrays = case.arrays()
    y, slope = jax.jit(jax.vmap(jax.value_and_grad(swoosh)))(arrays[f"{name}/x"])
    assert_outputs(y, arrays[f"{name}/y"], what=f"{name}/y")
    assert_outputs(slope, arrays[f"{name}/dydx"], what=f"{name}/dydx")


def test_bias_norm(case: GoldenCase) -> None:
    arrays = case.arrays()

    @jax.jit
    def norm(w: Any, *inputs: Any) -> Any:
        y, backward = jax.vjp(bias_norm, *inputs)
        return y, backward(w)

    y, gradients = norm(*(arrays[f"biasnorm/{name}"] for name in ("w", "x", "bias", "log_scale")))
    for name, actual in zip(("y", "dx", "dbias", "dlog_scale"), (y, *gradients), strict=True):
        assert_outputs(actual, arrays[f"biasnorm/{name}"], what=f"biasnorm/{name}")


def test_rates(case: GoldenCase) -> None:
    """Downsampling and upsampling of `modifier/x` [T B D]."""
    arrays = case.arrays()
    names = [name for name in arrays if re.fullmatch(r"downsample\d+/y|upsample\d+(/y)?", name)]
    logits = {name: arrays[name.replace("/y", "/bias")] for name in names if name.startswith("down")}

    @jax.jit
    def resampled(x: Any, logits: Any) -> Any:
        lengths, found = jnp.full(len(x), x.shape[1]), {}
        for name in names:
            factor = int(*re.findall(r"\d+", name))
            if name in logits:
                found[name] = Downsample(factor).apply({"params": {"logits": logits[name]}}, x, lengths)
            else:
                found[name] = upsample(x, factor=factor, num_frames=factor * x.shape[1])
        return found

    assert names
    for name, y in resampled(arrays["modifier/x"].transpose(1, 0, 2), logits).items():
        assert_within(max_abs(y.transpose(1, 0, 2), arrays[name]), 1e-4 if name in logits else 0.0, what=name)


def test_positions(case: GoldenCase) -> None:
    arrays = case.arrays()
    for name in [name for name in arrays if re.fullmatch(r"relpos_\d+_\d+", name)]:
        width, num_frames = (int(number) for number in name.split("_")[1:])
        assert_outputs(compact_positions(num_frames, width), arrays[name][0], what=name)


def test_scheduled_float(case: GoldenCase) -> None:
    arrays = case.arrays()
    points = re.findall(r"\(([\d.]+),([\d.]+)\)", case.info["note"].split("ScheduledFloat pairs")[1])
    schedule = piecewise_linear(*((float(x), float(y)) for x, y in points))
    values = jax.jit(jax.vmap(schedule))(arrays["scheduled_float/batch"])
    assert_within(max_abs(values, arrays["scheduled_float/value"]), 1e-6, what="scheduled_float")


def test_balance(case: GoldenCase) -> None:
    arrays, fields = case.arrays(), ("min_positive", "max_positive", "min_abs", "max_abs", "grad_scale")
    options = {
        name: dict(zip(fields, numbers(text), strict=False))
        for name, text in case.info["configs"].items()
        if name.startswith("bal")
    }
    assert options
    balanced = {name: lambda x, o=o: balance(x, YES, **o) for name, o in options.items()}
    check_gradients(arrays, balanced, arrays["modifier/x"], arrays["modifier/w"])


def test_whiten(case: GoldenCase) -> None:
    arrays, whitened = case.arrays(), {}
    for name, text in case.info["configs"].items():
        if name.startswith("whiten"):
            fields = {"groups": 1.0, "grad_scale": 0.5, **named(text)}
            options = {"limit": fields["limit"], "grad_scale": fields["grad_scale"]}
            options["num_groups"] = int(fields["groups"])
            whitened[name] = lambda x, o=options: whiten(x, YES, **o)
    assert whitened
    check_gradients(arrays, whitened, arrays["modifier/x"], arrays["modifier/w"])


def test_whiten_changes_gradients_from_the_peers_metric_on(case: GoldenCase) -> None:
    arrays = case.arrays()
    slope = jax.jit(
        jax.grad(lambda x, limit, num_groups: whiten(x, YES, limit=limit, grad_scale=1.0, num_groups=num_groups).sum()),
        static_argnums=2,
    )
    for name, text in case.info["configs"].items():
        if name.startswith("whiten"):
            metric, num_groups = float(arrays[f"{name}/metric"]), int({"groups": 1.0, **named(text)}["groups"])
            for factor, is_changed in ((1 - OUTPUTS, True), (1 + OUTPUTS, False)):
                found = slope(arrays["modifier/x"], factor * metric, num_groups)
                assert bool((found != 1).any()) == is_changed


def test_limits_of_values(case: GoldenCase) -> None:
    arrays, limited, penalised = case.arrays(), {}, {}
    for name in [name.removesuffix("/dx") for name in arrays if name.endswith("/dx")]:
        if name.startswith("limit_param_"):
            low, high = (float(number) for number in name.removeprefix("limit_param_").split("_"))
            limited[name] = lambda x, low=low, high=high: limit_values(x, YES, minimum=low, maximum=high)
        if name.startswith("penalize_abs_"):
            limit, penalty = (float(number) for number in name.removeprefix("penalize_abs_").split("_"))
            penalised[name] = lambda x, a=limit, b=penalty: penalize_large(x, YES, limit=a, penalty=b)
    assert limited or penalised
    for functions, of in ((limited, "limit_param"), (penalised, "modifier")):
        if functions:
            check_gradients(arrays, functions, arrays[f"{of}/x"], arrays[f"{of}/w"])


def test_every_array_is_compared(case: GoldenCase) -> None:
    known = (
        r"(swoosh_[lr]|biasnorm|(down|up)sample\d|relpos_.*|scheduled_float|modifier"
        r"|bal\d+|whiten.*|limit_param.*|penalize_abs.*)(/.*)?"
    )
    assert [name for name in case.arrays() if not re.fullmatch(known, name)] == []
    assert np.isfinite([array.sum() for array in case.arrays().values()]).all()
