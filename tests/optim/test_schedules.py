import importlib
import itertools
import re
from fractions import Fraction

import jax
import numpy as np
import pytest

from asr_jax.optim.schedules import Eden, InverseEpoch, Polynomial, RunLength, TriStage, WarmupHoldDecay
from tests.support import assert_close


def rates(schedule, num_updates, points, updates_per_epoch=100):
    rate = schedule.build(RunLength(num_updates, updates_per_epoch))
    return np.asarray(jax.jit(jax.vmap(rate))(np.array([*points], np.int32)))


def test_warm_up_hold_and_linear_decay():
    schedule = WarmupHoldDecay(peak_lr=2.0, warmup_updates=3, hold_updates=2, decay="linear", final_share=0.1)
    found = rates(schedule, 15, range(16))
    expected = [0.5, 1.0, 1.5, 2.0, 2.0] + [2.0 * (1 - 0.9 * k / 10) for k in range(11)]
    assert_close(found, expected, rtol=1e-6)


def test_cosine_ends_at_its_share_and_stays_there():
    found = rates(WarmupHoldDecay(peak_lr=1.0, warmup_updates=0, final_share=0.05), 100, [0, 50, 100, 500])
    assert_close(found, [1.0, 0.525, 0.05, 0.05], atol=1e-6)


def test_inverse_sqrt_is_continuous_and_has_a_floor():
    schedule = WarmupHoldDecay(peak_lr=1.0, warmup_updates=99, hold_updates=1, decay="inverse_sqrt", final_share=0.2)
    assert_close(rates(schedule, 1000, [99, 100, 400, 10**6]), [1.0, 1.0, 0.5, 0.2], rtol=1e-6)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_noam_decay_of_nemo_counts_from_the_hold(power):
    schedule = WarmupHoldDecay(peak_lr=2.0, min_lr=0.1, warmup_updates=10, hold_updates=20, decay="noam", power=power)
    points = np.array([0, 9, 10, 29, 30, 31, 60, 10**4])
    expected = np.maximum(2.0 * (10 / np.maximum(points - 20, 10)) ** power, 0.1)
    expected[:2] = 2.0 / 11, 20 / 11
    assert_close(rates(schedule, 1000, points), expected, rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"peak_lr": 0.0}, {"warmup_updates": -1}, {"final_share": 1.5}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        WarmupHoldDecay(**wrong)


def rates_of(schedule, points):
    """Learning rates of a run with 10 epochs of 10 updates."""
    return rates(schedule, 100, points, 10)


def rust_rate(step, *, warmup, hold, decay, peak, least):
    """Learning rate of the Rust trainer's optimizer step, which counts from 1."""
    if step <= warmup:
        return peak * step / warmup
    if step - warmup <= hold or not decay:
        return peak
    return least + (peak - least) * (1 - min((step - warmup - hold) / decay, 1))


def test_the_step_schedule_of_the_rust_trainer():
    settings = {"peak_lr": 1.0, "decay": "linear", "final_share": 0.1, "counts_from": 1}
    schedule = WarmupHoldDecay(warmup_updates=2, hold_updates=1, decay_updates=2, **settings)
    assert_close(rates(schedule, 100, range(6)), [0.5, 1, 1, 0.55, 0.1, 0.1], rtol=1e-6)
    for warmup, hold, decay in itertools.product((0, 1, 5), (0, 1, 4), (1, 7)):
        schedule = WarmupHoldDecay(warmup_updates=warmup, hold_updates=hold, decay_updates=decay, **settings)
        expected = [
            rust_rate(step, warmup=warmup, hold=hold, decay=decay, peak=1.0, least=0.1) for step in range(1, 20)
        ]
        assert_close(rates(schedule, 100, range(19)), expected, rtol=1e-6)


def test_the_example_of_the_rust_recipe():
    """Warm-up 1000, decay 20000, as the recipe's docstring states it."""
    text = " ".join(importlib.import_module("configs.squeezeformer_rust").__doc__.split())
    schedule = eval(re.search(r"WarmupHoldDecay\([^)]*\)", text)[0], {"WarmupHoldDecay": WarmupHoldDecay})
    steps = [1, 999, 1000, 1001, 11_000, 20_999, 21_000, 30_000]
    expected = [rust_rate(step, warmup=1000, hold=0, decay=20_000, peak=1e-3, least=0.0) for step in steps]
    assert_close(rates(schedule, 10**6, np.array(steps) - 1), expected, rtol=1e-6, atol=1e-10)


def test_the_epoch_schedule_of_the_rust_trainer():
    schedule = InverseEpoch(peak_lr=1.0, warmup_epochs=2, hold_epochs=1)
    assert_close(rates_of(schedule, range(0, 60, 10)), [0.5, 1, 1, 2 / 3, 0.5, 0.4], rtol=1e-6)
    flat = InverseEpoch(peak_lr=1.0, warmup_epochs=2, hold_epochs=1, exponent=0.0)
    assert rates_of(flat, [10**6]) == 1.0
    assert rates_of(InverseEpoch(peak_lr=1.0, min_lr=0.3), [10**6]) == np.float32(0.3)


def test_a_half_life():
    schedule = WarmupHoldDecay(
        peak_lr=4e-3, min_lr=4e-4, warmup_updates=9, hold_updates=20, decay="half_life", half_life_updates=10
    )
    assert_close(
        rates(schedule, 1000, [0, 8, 9, 29, 39, 49, 500]),
        [4e-4, 3.6e-3, 4e-3, 4e-3, 2e-3, 1e-3, 4e-4], rtol=1e-5,
    )  # fmt: skip


def test_a_rate_that_is_set_after_the_update():
    """The first update of a run has the peak rate; the first update of an epoch has the rate of the epoch before."""
    settings = {"peak_lr": 1.0, "warmup_updates": 0, "decay": "exponential", "gamma": 0.5}
    before, after = (WarmupHoldDecay(**settings, rate_set=when) for when in ("before_update", "after_update"))
    assert rates_of(before, [0, 9, 10, 11]).tolist() == [0.5, 0.5, 0.25, 0.25]
    assert rates_of(after, [0, 1, 10, 11]).tolist() == [1.0, 0.5, 0.5, 0.25]
    warm = WarmupHoldDecay(peak_lr=1.0, warmup_updates=3, rate_set="after_update")
    assert rates_of(warm, [0, 1, 2]).tolist() == [1.0, 0.5, 0.75]


def test_a_rate_that_is_set_before_the_run_and_after_each_update():
    """NVIDIA's wav2vec 2.0 sets the rate for step 1 before the first update, and for step n after update n."""
    polynomial = Polynomial(peak_lr=1.0, warmup_updates=4, rate_set="before_run_and_after_update")
    assert_close(rates_of(polynomial, [0, 1, 2, 3, 4, 5]), [0.25, 0.25, 0.5, 0.75, 1.0, 95 / 96])


def test_lengths_in_updates_and_epochs_add_up():
    schedule = WarmupHoldDecay(peak_lr=1.0, warmup_updates=4, warmup_epochs=0.5, hold_epochs=1, decay="linear")
    assert_close(rates_of(schedule, [4, 8, 9, 18, 19]), [0.5, 0.9, 1, 1, 1], rtol=1e-6)
    assert rates_of(schedule, [59])[0] < 0.6


def test_a_factor_near_one_is_not_rounded():
    """0.9999 in float32 has an error of 5e-9, which would become 5e-4 after 100,000 updates."""
    schedule = TriStage(peak_lr=1.0, warmup_share=0.0, hold_share=0.0, final_share=0.0, gamma=0.9999)
    assert_close(rates(schedule, 10**6, [99_999], 10), [0.9999**100_000], rtol=1e-5)


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (InverseEpoch, {"warmup_epochs": -1}), (Polynomial, {"power": 0}), (TriStage, {"warmup_share": 0.7}),
        (TriStage, {"final_share": 0.0}), (Eden, {"decay_updates": 0}), (WarmupHoldDecay, {"min_lr": 2.0}),
        (WarmupHoldDecay, {"gamma": 1.5}),
    ],
)  # fmt: skip
def test_impossible_values_of_others_are_named(cls, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cls(**wrong)


@pytest.mark.parametrize("per_epoch", [41, 61, 11 / 4, 97 / 604])
def test_epochs_begin_where_they_begin_under_jit(per_epoch):
    exact = Fraction(per_epoch).limit_denominator(1000)
    schedule = WarmupHoldDecay(peak_lr=1.0, warmup_updates=0, decay="exponential", gamma=0.99)
    updates = np.unique([int(k * exact) + step for k in range(200) for step in (0, 1) if k * exact < 20_000])
    found = rates(schedule, 10**5, updates, float(exact))
    epochs = [int(update // exact) + 1 for update in updates.tolist()]
    assert_close(np.log(found) / np.log(0.99), epochs, rtol=1e-3, atol=0.1)


def test_an_inverse_epoch_counts_epochs_always():
    assert InverseEpoch(warmup_epochs=0, hold_epochs=0).counts_epochs
