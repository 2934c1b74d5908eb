"""A small model of about 3.4 M parameters with characters for a few hours of read speech: an hour on two CPU cores.

Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl
Command   [MODEL=conformer] python -m asr_jax.train --config configs/read_speech.py --data.train … --data.validation …
          MODEL: zipformer (the default), conformer, fastconformer, squeezeformer or quartznet. zipformer and
          quartznet give 50 frames a second, as characters come at up to 20; the others 25 (fastconformer: 12.5) and 256
          pieces of words
Expected  on 5.9 h of LibriSpeech train-clean-5 and CMU ARCTIC as Opus: WER 81 %, CER 33 % of the zipformer; the
          yardstick for later work. The others are not yet measured
"""

import os

from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.config import Experiment, Training
from asr_jax.data.buckets import Buckets
from asr_jax.data.dataset import Data
from asr_jax.data.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import EncoderSettings, Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizer import TokenizerSettings

MANIFESTS = "data/read_speech/manifests"
MODEL = os.environ.get("MODEL", "zipformer")
ENCODERS: dict[str, tuple[EncoderSettings, float]] = {
    "zipformer": (
        Zipformer.tiny(
            dims=(96, 128, 160, 128),
            num_layers=(1, 2, 2, 1),
            unmasked_dims=(96, 128, 160, 128),
            feedforward_dims=(256, 384, 512, 384),
            output_downsampling=1,  # 50 frames a second: characters come at up to 20
            batches_per_update=8.0,
            dropout_start=0.1,
            dropout_end=0.1,
        ),
        1.2e-3,
    ),
    "conformer": (Conformer.tiny(dim=128, num_layers=8), 1e-3),
    "fastconformer": (Conformer.tiny(dim=128, num_layers=8, subsampling_factor=8, kernel_size=9), 1e-3),
    "squeezeformer": (Squeezeformer.tiny(dim=128, num_layers=8), 1e-3),
    "quartznet": (QuartzNet.of_5x5(num_mels=80, dropout=0.1, width_factor=0.6875), 2e-3),
}
"""By name, with the peak learning rate."""
PIECES = TokenizerSettings(kind="sentencepiece", vocab_size=257, normaliser="english_letters.v1")


def experiment() -> Experiment:
    if MODEL not in ENCODERS:
        raise ValueError(f"MODEL is {MODEL}: expected one of {', '.join(ENCODERS)}")
    encoder, peak_lr = ENCODERS[MODEL]
    characters = TokenizerSettings(kind="characters", normaliser="english_letters.v1")
    return Experiment(
        name="read_speech" if MODEL == "zipformer" else f"read_speech_{MODEL}",
        model=Model(
            augment=(
                VocalTract(max_warp=0.1),
                SpecAugment(max_freq_bins=15, num_time_masks=2, max_time_frames=30, max_time_share=0.1),
            ),
            encoder=encoder,
            heads={"ctc": CTC(dropout=0.1)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=characters if MODEL in ("zipformer", "quartznet") else PIECES,
            filters=Filters(max_duration_s=20.0),
            buckets=Buckets(num=5, batch_seconds=40.0, batch_multiple=1),
            speeds=(0.9, 1.0, 1.1),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=peak_lr, warmup_updates=500, decay="cosine")),
        training=Training(num_updates=7000, ema=EMA(0.998), validate_every=500, log_every=50),
    )
