"""Config of a short run of an LSTM encoder with CTC, which streams. Manifests are set on the command line."""

from dataclasses import replace

from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.config import Experiment
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from tests.toy_config import experiment as toy


def experiment() -> Experiment:
    model = Model(
        encoder=LSTMEncoder(num_mels=240, dim=16, layers_before=1, layers_after=1, weight_scale=4.0),
        # Without the weight, a model that has learnt nothing finds hardly any label.
        heads={"ctc": CTC(blank_weight=-0.3)},
        front_end=rnnt(NormaliseByDataSet(mean=(-8.0,) * 80, deviation=(4.0,) * 80)),
        augment=(),
    )
    return replace(toy(), name="streaming", model=model)
