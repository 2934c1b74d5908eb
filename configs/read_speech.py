"""Small models of about 1 M parameters for a few hours of read speech; 20 minutes of training on two CPU cores.

Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl
Command   [MODEL=conformer] python -m asr_jax.train --config configs/read_speech.py --data.train … --data.validation …
          MODEL: zipformer (the default), conformer, fastconformer, squeezeformer, quartznet, zipformer_transducer
          (with a CTC head), or paraformer, paraformer_v2, paraformer_enhanced and aed (attention decoder and CTC),
          which have the encoder and the updates of conformer
Recipe    fastconformer has 12.5 frames per second and therefore 96 pieces, as has zipformer_transducer, whose loss
          then has fewer labels; the others have characters. There is no
          augmentation and no dropout, because there are few epochs (loss of the conformer after 500 updates: 2.25; with
          SpecAugment, three speeds and dropout 2.58). For longer training: --training.num-updates 30000
          --data.speeds 0.9 1.0 1.1
          The decoder's loss of paraformer_v2 has no gradient with respect to the posteriors (query_gradient): with it,
          the CTC head does not learn in so few updates.
Expected  docs/results.md has the error rates after 20 minutes on 5.9 h of LibriSpeech train-clean-5 and CMU ARCTIC
Time      20 minutes on two CPU cores
"""

import os
from dataclasses import replace
from typing import NamedTuple

from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import EncoderSettings
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/read_speech/manifests"
MODEL = os.environ.get("MODEL", "zipformer")


class Recipe(NamedTuple):
    """Best settings of an encoder for 20 minutes of training on two CPU cores."""

    encoder: EncoderSettings
    peak_lr: float
    num_updates: int
    batch_seconds: float = 20.0
    warmup_updates: int = 200
    heads: dict[str, HeadSettings] = {"ctc": CTC(dropout=0.0)}  # noqa: RUF012  not changed
    """Heads; texts come from the first one."""


DECODER = {"num_layers": 2, "num_heads": 4, "feedforward_dim": 192, "dropout": 0.0, "attention_dropout": 0.0}
PARAFORMER_V2 = ParaformerV2(query_gradient=False, decoder=TransformerDecoder(**DECODER))  # type: ignore[arg-type]
RECIPES = {
    "zipformer": Recipe(Zipformer.tiny(batches_per_update=8.0, dropout_start=0.0, dropout_end=0.0), 1.2e-3, 6600),
    "conformer": Recipe(Conformer.tiny(dropout=0.0), 2e-3, 5000),
    "fastconformer": Recipe(Conformer.tiny(dropout=0.0, subsampling_factor=8, kernel_size=9), 2e-3, 11500),
    # With batches of 20 s or a warm-up of 200 updates, it only learns the frequencies of letters.
    "squeezeformer": Recipe(Squeezeformer.tiny(dropout=0.0), 1e-3, 4850, batch_seconds=40.0, warmup_updates=1000),
    "quartznet": Recipe(QuartzNet.tiny(num_mels=80, dropout=0.0), 2e-3, 10000),
    "zipformer_transducer": Recipe(
        Zipformer.tiny(batches_per_update=8.0, dropout_start=0.0, dropout_end=0.0),
        1.2e-3,
        5500,
        heads={
            "transducer": Transducer(
                prediction=StatelessPrediction(64, 2),
                joint_dim=128,
                activation="tanh",
                dropout=0.0,
                weight_by="labels",
                pruning=Pruning(warmup=1000),
            ),
            "ctc": CTC(dropout=0.0, scale=0.2),
        },
    ),
    "paraformer": Recipe(
        Conformer.tiny(dropout=0.0),
        2e-3,
        5000,
        heads={
            "paraformer": Paraformer(
                decoder=SANMDecoder(num_attention_layers=2, memory_dropout=0.0, **DECODER),  # type: ignore[arg-type]
                label_scale=0.7,
            ),
            "ctc": CTC(dropout=0.0, scale=0.3),
        },
    ),
    "paraformer_v2": Recipe(
        Conformer.tiny(dropout=0.0), 2e-3, 5000, heads={"paraformer": PARAFORMER_V2, "ctc": CTC(dropout=0.0)}
    ),
    "paraformer_enhanced": Recipe(
        Conformer.tiny(dropout=0.0, taps=("layer_1",)),
        2e-3,
        5000,
        heads={
            "paraformer": replace(PARAFORMER_V2, enhanced=Enhancement(tap="layer_1")),
            "ctc": CTC(dropout=0.0),
            "shallow": CTC(dropout=0.0, tap="layer_1", scale=0.3),
        },
    ),
    "aed": Recipe(
        Conformer.tiny(dropout=0.0),
        2e-3,
        5000,
        heads={
            "attention": AttentionDecoder(
                decoder=LabelDecoder(
                    dim=96, num_layers=2, attention_dim=96, num_heads=4, feedforward_dim=192, dropout=0.0
                ),
                ctc="ctc",
                scale=0.7,
            ),
            "ctc": CTC(dropout=0.0, scale=0.3),
        },
    ),
}


def experiment() -> Experiment:
    if MODEL not in RECIPES:
        raise ValueError(f"MODEL is {MODEL}: expected one of {', '.join(RECIPES)}")
    recipe = RECIPES[MODEL]
    tokenizer = TokenizerSettings(kind="characters")
    if MODEL in ("fastconformer", "zipformer_transducer"):
        tokenizer = TokenizerSettings(kind="sentencepiece", vocab_size=96)
    return Experiment(
        name="read_speech" if MODEL == "zipformer" else f"read_speech_{MODEL}",
        model=Model(
            augment=(),
            encoder=recipe.encoder,
            heads=recipe.heads,
            primary=next(iter(recipe.heads)) if len(recipe.heads) > 1 else "",
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=tokenizer,
            filters=Filters(max_duration_s=20.0),
            batching=Batching.planned(num_buckets=5, seconds=recipe.batch_seconds, row_multiple=1),
        ),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=recipe.peak_lr, warmup_updates=recipe.warmup_updates, decay="cosine")
        ),
        training=Training(
            num_updates=recipe.num_updates,
            ema=EMA(0.998),
            validation=Validation(
                every=1000, heads=("ctc",) if {"paraformer", "attention"} & recipe.heads.keys() else ()
            ),
            log_every=50,
        ),
    )
