"""Small CNN with CTC, the example of docs/adding-a-model.md.

Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl
Command   python -m asr_jax.train --config examples/new_model/small_cnn_config.py --data.train … --data.validation …
Expected  no error rates: the example shows how a model is added
"""

from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from examples.new_model.small_cnn import SmallCNN


def experiment() -> Experiment:
    return Experiment(
        name="small_cnn",
        model=Model(encoder=SmallCNN(), heads={"ctc": CTC(dropout=0.0)}, augment=()),
        data=Data(
            train=("train.jsonl",),
            validation=("validation.jsonl",),
            batching=Batching.planned(num_buckets=3, seconds=160.0),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=2e-3, warmup_updates=200, decay="cosine")),
        training=Training(num_updates=5000, ema=EMA(0.998), validation=Validation(every=1000), log_every=50),
    )
