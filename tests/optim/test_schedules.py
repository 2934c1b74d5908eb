import numpy as np
import pytest

from asr_jax.optim.schedules import RunLength, WarmupHoldDecay


def rates(schedule, num_updates, points):
    return [float(schedule.build(RunLength(num_updates, 100))(point)) for point in points]


def test_warm_up_hold_and_linear_decay():
    schedule = WarmupHoldDecay(peak_lr=2.0, warmup_updates=3, hold_updates=2, decay="linear", final_share=0.1)
    found = rates(schedule, 15, range(16))
    expected = [0.5, 1.0, 1.5, 2.0, 2.0] + [2.0 * (1 - 0.9 * k / 10) for k in range(11)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_cosine_ends_at_its_share_and_stays_there():
    found = rates(WarmupHoldDecay(peak_lr=1.0, warmup_updates=0, final_share=0.05), 100, [0, 50, 100, 500])
    np.testing.assert_allclose(found, [1.0, 0.525, 0.05, 0.05], atol=1e-6)


def test_inverse_sqrt_is_continuous_and_has_a_floor():
    schedule = WarmupHoldDecay(peak_lr=1.0, warmup_updates=99, hold_updates=1, decay="inverse_sqrt", final_share=0.2)
    np.testing.assert_allclose(rates(schedule, 1000, [99, 100, 400, 10**6]), [1.0, 1.0, 0.5, 0.2], rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"peak_lr": 0.0}, {"warmup_updates": -1}, {"final_share": 1.5}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        WarmupHoldDecay(**wrong)
