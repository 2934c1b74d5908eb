"""Config of a short run of the toy recogniser. Manifests are set on the command line."""

from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from tests.training.toy import toy_model


def experiment() -> Experiment:
    return Experiment(
        name="toy",
        model=toy_model(dim=24),
        data=Data(
            train=("train.jsonl",),
            validation=("validation.jsonl",),
            batching=Batching.planned(num_buckets=1, seconds=8.0, row_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=1e-2, warmup_updates=2)),
        training=Training(num_updates=6, validation=Validation(every=3), log_every=2, ema=EMA(0.9)),
    )
