"""Small Zipformer on one hour of synthetic speech; scripts/quickstart.sh trains it in a few minutes on two CPU cores.

Data      python -m asr_jax.data.corpora.synthetic --out data/quickstart
Command   python -m asr_jax.train --config configs/quickstart.py
Expected  WER below 8 % on voices that are not in the training set (measurements: docs/results.md)
"""

from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/quickstart/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="quickstart",
        model=Model(
            augment=(
                VocalTract(max_warp=0.18),
                SpecAugment(max_freq_bins=15, num_time_masks=2, max_time_frames=100, max_time_share=0.24),
            ),
            encoder=Zipformer.tiny(batches_per_update=15.0, dropout_start=0.1, dropout_end=0.05),
            heads={"ctc": CTC(dropout=0.05)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="characters"),
            batching=Batching.planned(num_buckets=3, seconds=46.0, row_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=4e-3, warmup_updates=150, decay="cosine")),
        training=Training(num_updates=1500, ema=EMA(0.99), validation=Validation(every=500), log_every=50),
    )
