import jax
import numpy as np
import pytest

from asr_jax.optim.ema import EMA
from tests.support import assert_close


def after(ema, updates, live=1.0, start=0.0):
    average, compute = {"w": np.float32(start)}, jax.jit(ema.next)
    for update in updates:
        average = compute(average, {"w": np.float32(live)}, updates=np.int32(update))
    return float(average["w"])


def test_average_starts_quickly_and_is_bounded_by_its_decay():
    assert_close(after(EMA(0.999), [0, 1, 2]), 1.0)
    assert_close(after(EMA(0.999), [1, 2]), 1 - (2 / 11) * (3 / 12), rtol=1e-6)
    assert_close(after(EMA(0.9), [10**6]), 0.1, rtol=1e-5)


def test_average_begins_with_the_live_weights_of_its_first_update():
    ema = EMA(0.9, start=5)
    assert after(ema, [1, 5], live=3.0) == 3.0
    assert_close(after(ema, [6], live=3.0), 3.0 * (1 - 2 / 11), rtol=1e-6)


def test_without_decay_it_is_the_live_weights():
    assert after(EMA(0.0), [7], live=2.0) == 2.0


@pytest.mark.parametrize("wrong", [{"decay": 1.0}, {"start": -1}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        EMA(**wrong)
