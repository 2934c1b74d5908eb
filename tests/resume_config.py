"""The toy run with all that a checkpoint must carry: statistics, dropout, augmentation, accumulation, speeds."""

from dataclasses import replace

from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training
from asr_jax.optim.ema import EMA
from tests.toy_config import experiment as toy_experiment
from tests.training.toy import toy_model


def experiment() -> Experiment:
    toy = toy_experiment()
    augment = (SpecAugment(max_freq_bins=10, num_time_masks=1, max_time_frames=5, max_time_share=0.1),)
    return replace(
        toy,
        name="resume",
        model=replace(toy_model(dim=24, dropout=0.1, norm=True), augment=augment),
        data=replace(toy.data, speeds=(0.9, 1.0)),
        training=Training(num_updates=12, accumulate=2, validate_every=3, log_every=2, ema=EMA(0.9)),
    )
