"""SAN-M: the suite of all encoders, and what does not fit. tests/goldens/test_funasr.py compares it with FunASR's."""

import pytest
from encoder_suite import EncoderSuite, Made

from asr_jax.audio.presets import funasr, nemo
from asr_jax.core.pytrees import flatten
from asr_jax.models.base import Model
from asr_jax.models.sanm import SANM

TINY = SANM(
    num_mels=16, dim=12, num_layers=3, num_heads=2, feedforward_dim=20, kernel_size=5, memory_shift=1, dropout=0.0,
    attention_dropout=0.0, taps=("layer_0", "layer_2"),
)  # fmt: skip


@pytest.mark.slow  # tests/goldens/test_funasr.py compares outputs, losses and gradients
class TestSANM(EncoderSuite):
    settings = TINY
    num_features = TINY.num_mels

    def test_depths_of_parameters(self, made: Made) -> None:
        depths = {path: TINY.depths(path) for path in flatten(made.params)}
        assert depths["first/in/kernel"] == (0,)
        assert depths["layers/attention/memory/kernel"] == (1, 2)
        assert {depth for found in depths.values() for depth in found} == set(range(TINY.num_depths()))


def test_what_does_not_fit_is_refused() -> None:
    assert Model(SANM(), front_end=funasr(), augment=())
    with pytest.raises(ValueError, match=r"encoder.num_mels is 560, but frames of the front-end have 80 values"):
        Model(SANM(), front_end=nemo(), augment=())
    with pytest.raises(ValueError, match=r"dim is 10: expected a multiple of num_heads, 4"):
        SANM(dim=10)
    with pytest.raises(ValueError, match=r"num_mels is 7: expected an even number of 4 or more"):
        SANM(num_mels=7)
    with pytest.raises(ValueError, match=r"taps is \('layer_50',\): expected names from layer_0, layer_1, … layer_49"):
        SANM(taps=("layer_50",))
