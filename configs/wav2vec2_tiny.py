"""Pre-training and fine-tuning of a wav2vec 2.0 with 1 M parameters on a few hours of read speech, on two CPU cores.

Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl; pre-training needs no texts
Command   STAGE=pretrain python -m asr_jax.train --config configs/wav2vec2_tiny.py --run-dir PRETRAINED --data.train …
          STAGE=finetune python -m asr_jax.train --config configs/wav2vec2_tiny.py --init-from PRETRAINED --data.train …
          STAGE=finetune without --init-from trains from random weights, as a baseline for pre-training
Expected  CTC loss and error rates with and without pre-training: docs/results.md
Time      not recorded; trained on two CPU cores
"""

import os

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment, Init, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import FairseqAdam
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/read_speech/manifests"
STAGE = os.environ.get("STAGE", "pretrain")


def experiment(init_from: str = "") -> Experiment:
    if STAGE not in ("pretrain", "finetune"):
        raise ValueError(f"STAGE is {STAGE}: expected pretrain or finetune")
    pretrains = STAGE == "pretrain"
    rates = dict.fromkeys(("dropout", "attention_dropout", "input_dropout", "feature_dropout", "layer_drop"), 0.0)
    head: HeadSettings = CTC(dropout=0.0)
    if pretrains:
        head = Contrastive(
            quantizer=Quantizer(groups=2, entries=64, decay=0.9995), codes_dim=64, dim=64, num_negatives=50
        )
    return Experiment(
        name=f"wav2vec2_tiny_{STAGE}",
        model=Model(
            front_end=wav2vec2(),
            augment=(),
            encoder=Wav2Vec2.tiny(
                time_mask=SpanMask(0.65 if pretrains else 0.2, 10, same_count=False),
                extractor_gradient=0.1 if pretrains else 1.0,
                taps=("features", "extractor") if pretrains else (),
                **rates,
            ),
            heads={STAGE: head},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="none" if pretrains else "characters"),
            filters=Filters(min_duration_s=1.0, max_duration_s=20.0),
            batching=Batching.planned(num_buckets=5, seconds=60.0 if pretrains else 20.0, row_multiple=1),
        ),
        init=Init(path=init_from, new=("heads_.*",)),
        optim=FairseqAdam(
            schedule=WarmupHoldDecay(peak_lr=1e-3, warmup_updates=300, decay="cosine"), clip_at=1.0, weight_decay=0.01
        ),
        training=Training(
            num_updates=3000 if pretrains else 1000, ema=EMA(0.998), validation=Validation(every=500), log_every=50
        ),
    )
