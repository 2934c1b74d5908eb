"""A small Zipformer on isolated real digits of few speakers: what scripts/prepare_digits.py prepares.

Data      python scripts/prepare_digits.py --digits DIR
Command   python -m asr_jax.train --config configs/digits.py
Expected  see BUILD_NOTES.md
"""

from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.config import Experiment, Training
from asr_jax.data.buckets import Buckets
from asr_jax.data.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizer import TokenizerSettings

MANIFESTS = "data/digits/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="digits",
        model=Model(
            augment=(
                VocalTract(max_warp=0.2),
                SpecAugment(max_freq_bins=20, num_time_masks=2, max_time_frames=20, max_time_share=0.2),
            ),
            encoder=Zipformer.tiny(batches_per_update=15.0, dropout_start=0.15, dropout_end=0.1),
            heads={"ctc": CTC(dropout=0.1)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="words"),
            buckets=Buckets(num=5, batch_seconds=46.0, batch_multiple=4),
            speeds=(0.85, 1.0, 1.15),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=3e-3, warmup_updates=300, decay="cosine")),
        training=Training(num_updates=6200, ema=EMA(0.998), validate_every=500, log_every=100),
    )
