import jax
import numpy as np
import pytest

from asr_jax.optim.loss_scale import LossScale, Scaling, no_scaling


def test_overflow_lowers_the_scale_and_updates_without_raise_it():
    following = jax.jit(LossScale(initial=8.0, growth_updates=3).next)
    scaling, found = Scaling(np.float32(8), np.int32(0)), []
    for finite in (True, True, False, True, True, True, True):
        scaling = following(scaling, np.bool_(finite))
        found.append(float(scaling.scale))
    assert found == [8, 8, 4, 4, 4, 8, 8]
    assert int(scaling.good) == 1
    assert float(jax.jit(no_scaling)().scale) == 1.0


@pytest.mark.parametrize("wrong", [{"initial": 1e-9}, {"factor": 1.0}, {"growth_updates": 0}, {"floor": 0.0}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LossScale(**wrong)
