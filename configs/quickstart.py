"""Conformer of 1 M parameters on one hour of synthetic speech; scripts/quickstart.sh trains it on two CPU cores.

Data      python -m asr_jax.data.corpora.synthetic --out data/quickstart
Command   python -m asr_jax.train --config configs/quickstart.py
Expected  WER of 2.2 to 4.5 % on voices that are not in the training set, in three runs (docs/results.md)
Time      minutes on two CPU cores; scripts/quickstart.sh prints the seconds
"""

from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/quickstart/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="quickstart",
        model=Model(
            # Distorted spectra from the start delay learning, so their probability rises during the first updates.
            augment=(
                VocalTract(max_warp=0.18, ramp_updates=300),
                SpecAugment(
                    max_freq_bins=15, num_time_masks=2, max_time_frames=100, max_time_share=0.24, ramp_updates=300
                ),
            ),
            encoder=Conformer.tiny(subsampling_channels=32, taps=("layer_1",)),
            # A second CTC loss after two of the four layers makes the encoder learn from fewer updates.
            heads={"ctc": CTC(dropout=0.1), "inner": CTC(dropout=0.1, tap="layer_1", scale=0.3)},
            primary="ctc",
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="characters"),
            batching=Batching.planned(num_buckets=2, seconds=36.0, row_multiple=4),
            speeds=(0.9, 1.0, 1.1),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=3e-3, warmup_updates=200, decay="cosine")),
        training=Training(num_updates=2400, ema=EMA(0.99), validation=Validation(every=800), log_every=50),
    )
