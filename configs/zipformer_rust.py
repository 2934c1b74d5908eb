"""Zipformer with the recipe of the Rust trainer, which has a schedule in epochs and no augmentation by default.

Source    RustedBytes/w2v-bert-uk at commit adec09e, `--architecture zipformer`: its defaults, with the batch size of
          its example
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/zipformer_rust.py
          other sizes: `Zipformer.variant("xs")`, s, sm, m, ml, l below
Expected  no error rate is published; configs/zipformer.py is the recipe with published error rates
Time      not published
Differs   The Rust trainer's Swoosh functions are x·σ(x-1) and x·σ(x-4), here they are the paper's; its embedding pads
          time and has (T + 1) // 2 frames instead of (T - 7) // 2; its upsampling tiles frames instead of repeating
          each frame; its loss is the mean over utterances of the loss per label, here all labels of a batch have the
          same weight; it reads utterances in the order of the manifest or by length, here they are shuffled.
"""

from asr_jax.audio.presets import rust_zipformer
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import InverseEpoch
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/librispeech/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="zipformer_rust",
        model=Model(
            front_end=rust_zipformer(),
            augment=(),  # its example for Squeezeformer uses SpecAugment.rust(...)
            encoder=Zipformer.variant("m", dropout_start=0.1, dropout_end=0.1, skip=False),
            heads={"ctc": CTC(dropout=0.0)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=500),
            batching=Batching(num_buckets=12, budget=16, unit="utterances", row_multiple=8),
        ),
        optim=AdamW(
            schedule=InverseEpoch(peak_lr=1e-3, warmup_epochs=20, hold_epochs=160, exponent=1.0),
            clip_at=0.0,
            weight_decay=5e-4,
            decay_factors=EVERYTHING,
            b2=0.999,
            eps=1e-5,
        ),
        training=Training(
            num_epochs=500, ema=EMA(0.0), validation=Validation(every=5000, each_epoch=True), log_every=50
        ),
    )
