"""Small models of about 1 M parameters on isolated spoken digits of few speakers.

Data      python scripts/prepare_digits.py --digits DIR: real recordings
Command   [MODEL=conformer] python -m asr_jax.train --config configs/digits.py
          MODEL: zipformer (the default), conformer, fastconformer, squeezeformer, quartznet, the transducers
          zipformer_transducer and rnnt, or paraformer, paraformer_v2, paraformer_enhanced and aed (attention decoder
          and CTC), whose encoder is that of conformer
Expected  WER after at most 6,200 updates on words of speakers that are not in the training data (Speech Commands):
          zipformer 3.6 %, conformer and fastconformer 1.8 %, squeezeformer 3.0 %, quartznet 3.6 %. More in
          docs/results.md. zipformer_transducer 1.8 %, and rnnt 7.2 % after 12,000 updates. paraformer 2.4 % and
          paraformer_v2 3.6 % after 3,000 updates, aed 4.8 %; paraformer_enhanced 3.6 % after 5,000
Time      222 s (fastconformer) to 372 s (conformer) per epoch of 1,197 updates on two CPU cores
"""

import os
from dataclasses import replace
from typing import NamedTuple

from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.audio.stages import Normalise, Stack
from asr_jax.config import Experiment, Training
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import EncoderSettings, Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/digits/manifests"
MODEL = os.environ.get("MODEL", "zipformer")
CTC_ALONE: dict[str, HeadSettings] = {"ctc": CTC(dropout=0.1)}


class Recipe(NamedTuple):
    """Settings that depend on the model."""

    encoder: EncoderSettings
    peak_lr: float
    heads: dict[str, HeadSettings] = CTC_ALONE
    """Heads; texts come from the first one."""
    num_updates: int = 6200
    front_end: FrontEnd = KaldiFbank()


DECODER = {"num_layers": 2, "num_heads": 4, "feedforward_dim": 192}
PARAFORMER_V2 = ParaformerV2(decoder=TransformerDecoder(**DECODER))  # type: ignore[arg-type]
ZIPFORMER = Zipformer.tiny(batches_per_update=15.0, dropout_start=0.15, dropout_end=0.1)
RECIPES = {
    "zipformer": Recipe(ZIPFORMER, 3e-3),
    "conformer": Recipe(Conformer.tiny(), 2e-3),
    "fastconformer": Recipe(Conformer.tiny(subsampling_factor=8, kernel_size=9), 2e-3),
    "squeezeformer": Recipe(Squeezeformer.tiny(), 2e-3),
    # Dropout makes it underfit: the validation WER is 12.1 % with dropout and 10.5 % without.
    "quartznet": Recipe(QuartzNet.tiny(num_mels=80, dropout=0.0), 3e-3, {"ctc": CTC(dropout=0.0)}, num_updates=5000),
    "zipformer_transducer": Recipe(
        ZIPFORMER,
        3e-3,
        {
            "transducer": Transducer(
                prediction=StatelessPrediction(64), joint_dim=128, activation="tanh", dropout=0.0,
                pruning=Pruning(warmup=300),
            )
        },
    ),
    "rnnt": Recipe(
        # Batch normalisation and the CTC head let the LSTM learn within minutes. After 1,500 updates the validation
        # WER is 29 % with both, 70 % without batch normalisation and 94 % without either.
        LSTMEncoder(dim=144, layers_after=2, dropout=0.1, weight_scale=1.0, batch_norm=True),
        3e-3,
        {
            "transducer": Transducer(
                prediction=LSTMPrediction(64, 1, dropout=0.1, weight_scale=1.0), joint_dim=128, dropout=0.1
            ),
            "ctc": CTC(dropout=0.1, scale=0.5),
        },
        num_updates=12000,
        front_end=KaldiFbank(then=(Normalise(), Stack(3, 3))),
    ),
    "paraformer": Recipe(
        Conformer.tiny(),
        2e-3,
        {
            "paraformer": Paraformer(
                decoder=SANMDecoder(num_attention_layers=2, **DECODER), label_scale=0.7  # type: ignore[arg-type]
            ),
            "ctc": CTC(scale=0.3),
        },
    ),
    "paraformer_v2": Recipe(Conformer.tiny(), 2e-3, {"paraformer": PARAFORMER_V2, "ctc": CTC()}),
    "paraformer_enhanced": Recipe(
        Conformer.tiny(taps=("layer_1",)),
        2e-3,
        {
            "paraformer": replace(PARAFORMER_V2, enhanced=Enhancement(tap="layer_1")), "ctc": CTC(),
            "shallow": CTC(tap="layer_1", scale=0.3),
        },
    ),
    "aed": Recipe(
        Conformer.tiny(),
        2e-3,
        {
            "attention": AttentionDecoder(
                decoder=LabelDecoder(dim=96, num_layers=2, attention_dim=96, num_heads=4, feedforward_dim=192),
                ctc="ctc", scale=0.7,
            ),
            "ctc": CTC(scale=0.3),
        },
    ),
}  # fmt: skip


def experiment() -> Experiment:
    if MODEL not in RECIPES:
        raise ValueError(f"MODEL is {MODEL}: expected one of {', '.join(RECIPES)}")
    recipe = RECIPES[MODEL]
    return Experiment(
        name="digits" if MODEL == "zipformer" else f"digits_{MODEL}",
        model=Model(
            augment=(
                VocalTract(max_warp=0.2),
                SpecAugment(max_freq_bins=20, num_time_masks=2, max_time_frames=20, max_time_share=0.2),
            ),
            front_end=recipe.front_end,
            encoder=recipe.encoder,
            heads=recipe.heads,
            primary=next(iter(recipe.heads)) if len(recipe.heads) > 1 else "",
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="words"),
            buckets=Buckets(num=5, batch_seconds=46.0, batch_multiple=4),
            speeds=(0.85, 1.0, 1.15),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=recipe.peak_lr, warmup_updates=300, decay="cosine")),
        training=Training(
            num_updates=recipe.num_updates,
            ema=EMA(0.998),
            validate_every=500,
            log_every=100,
            validate_heads=("ctc",) if {"paraformer", "attention"} & recipe.heads.keys() else (),
        ),
    )
