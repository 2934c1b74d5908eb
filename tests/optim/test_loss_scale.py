import jax.numpy as jnp
import pytest

from asr_jax.optim.loss_scale import LossScale, Scaling, no_scaling


def test_overflow_lowers_the_scale_and_updates_without_raise_it():
    settings = LossScale(initial=8.0, growth_updates=3)
    scaling, found = Scaling(jnp.float32(8.0), jnp.int32(0)), []
    for finite in (True, True, False, True, True, True, True):
        scaling = settings.next(scaling, jnp.array(finite))
        found.append(float(scaling.scale))
    assert found == [8, 8, 4, 4, 4, 8, 8]
    assert int(scaling.good) == 1
    assert float(no_scaling().scale) == 1.0


@pytest.mark.parametrize("wrong", [{"initial": 1e-9}, {"factor": 1.0}, {"growth_updates": 0}, {"floor": 0.0}])
def test_impossible_values_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LossScale(**wrong)
