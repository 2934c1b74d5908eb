"""Recipes of icefall's Zipformer and of NVIDIA's QuartzNet 5x5 on AN4, for `benchmarks/learning.py`.

    MODEL=quartznet python -m asr_jax.train --config benchmarks/learning_an4.py

Optimizer and regularisation are the original's. Sizes, batches and the length of the schedule are smaller, for two CPU
cores. QuartzNet has a quarter of the channels, NVIDIA's polynomial policy instead of the exponential one, which counts
epochs, and neither masks nor other speeds, because it learns slowly: for hundreds of updates, its loss is that of a
model that outputs blanks alone. Parameters are not averaged, because the originals are evaluated without averaging.
"""

import os

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import icefall, quartznet
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import NovoGrad, Optimizer, ScaledAdam
from asr_jax.optim.schedules import Eden, WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/an4/manifests"
MODEL = os.environ.get("MODEL", "zipformer")
MODELS = ("zipformer", "quartznet")
BATCHES_PER_UPDATE = 10.0
"""Batches by which Zipformer's schedules of dropout and layer skipping advance per update; they last 20,000 batches."""


def experiment() -> Experiment:
    if MODEL not in MODELS:
        raise ValueError(f"MODEL is {MODEL}: expected one of {', '.join(MODELS)}")
    front_end: FrontEnd
    masks: tuple[SpecAugment, ...]
    speeds: tuple[float, ...]
    encoder: EncoderSettings
    optimizer: Optimizer
    if MODEL == "zipformer":
        front_end, batch_s, num_updates = icefall(), 40.0, 1500
        masks, speeds = (SpecAugment(),), (0.9, 1.0, 1.1)
        encoder = Zipformer.tiny(
            embed_channels=(8, 16, 64),
            dims=(96, 128, 160, 128),
            unmasked_dims=(96, 96, 128, 96),
            feedforward_dims=(256, 384, 512, 384),
            kernel_sizes=(31, 31, 15, 31),
            query_dims=(32,) * 4,
            positions_dim=48,
            skip=True,
            regularise=True,
            batches_per_update=BATCHES_PER_UPDATE,
            mask_padding=False,  # as in icefall, whose regularisers count padding
        )
        optimizer = ScaledAdam(schedule=Eden(peak_lr=0.045, warmup_start=0.1, decay_updates=1000, decay_epochs=6))
        tokenizer = TokenizerSettings(kind="sentencepiece", vocab_size=100)
        ctc = CTC(dropout=0.1, weight_by="labels")
    else:
        front_end, batch_s, num_updates = quartznet(), 28.0, 5000
        masks, speeds = (), (1.0,)
        encoder = QuartzNet.of_5x5(width_factor=0.25, norm="batch_padded")  # as in PyTorch
        optimizer = NovoGrad(
            # This is NVIDIA's policy "legacy".
            schedule=WarmupHoldDecay(
                peak_lr=0.005, min_lr=1e-5, warmup_updates=100, hold_updates=3500, decay="polynomial", power=2.0
            ),
            b1=0.95,
            b2=0.0,
            weight_decay=1e-3,
        )
        tokenizer = TokenizerSettings(kind="characters")
        ctc = CTC(dropout=0.0, weight_by="utterances")
    return Experiment(
        name=f"learning_{MODEL}",
        model=Model(front_end=front_end, augment=masks, encoder=encoder, heads={"ctc": ctc}),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/dev.jsonl", f"{MANIFESTS}/test.jsonl"),
            tokenizer=tokenizer,
            batching=Batching.planned(num_buckets=4, seconds=batch_s, row_multiple=2),
            speeds=speeds,
        ),
        optim=optimizer,
        training=Training(num_updates=num_updates, ema=EMA(0.0), validation=Validation(every=1000), log_every=1),
    )
