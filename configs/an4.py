"""Conformer on AN4 (CMU): letters that people spell, numbers and commands, 0.63 h of training speech.

Data      python scripts/prepare_an4.py --an4 data/an4 --download
Command   [MODEL=ctc] python -m asr_jax.train --config configs/an4.py
          MODEL: transducer (the default) or ctc
LM        python -m asr_jax.ngram --input data/an4/manifests/train.jsonl --output data/an4/lm.arpa
          python -m asr_jax.evaluate RUN --data data/an4/manifests/test.jsonl --decoding.kind beam
              --decoding.beam-width 8 --decoding.fusion.kenlm data/an4/lm.arpa
          The beam width for ctc is 50.
Expected  test WER 7.1 %, with the language model 6.5 %; ctc: 8.7 and 6.9 % (means of three seeds: docs/results.md)
Time      30 to 51 minutes on one CPU core; ctc: 28 minutes
"""

import os

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, VocalTract
from asr_jax.audio.stages import Normalise
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/an4/manifests"
MODEL = os.environ.get("MODEL", "transducer")
# A second CTC loss after two of the four layers makes the encoder learn from fewer updates. It is not used afterwards.
INNER = CTC(dropout=0.1, tap="layer_1", scale=0.3)
HEADS: dict[str, dict[str, HeadSettings]] = {
    "ctc": {"ctc": CTC(dropout=0.1), "inner": INNER},
    "transducer": {
        "transducer": Transducer(
            weight_by="labels",  # as CTC's loss, so that the scales of the heads compare
            prediction=StatelessPrediction(64),
            joint_dim=128,
            activation="tanh",
            dropout=0.0,
            pruning=Pruning(warmup=300),
        ),
        "ctc": CTC(dropout=0.1, scale=0.5),
        "inner": INNER,
    },
}


def experiment() -> Experiment:
    if MODEL not in HEADS:
        raise ValueError(f"MODEL is {MODEL}: expected one of {', '.join(HEADS)}")
    return Experiment(
        name=f"an4_{MODEL}",
        model=Model(
            # Distorted spectra from the start delay learning, so their probability rises during the first updates.
            augment=(
                VocalTract(max_warp=0.25, ramp_updates=500),
                SpecAugment(
                    max_freq_bins=15, num_time_masks=2, max_time_frames=20, max_time_share=0.25, ramp_updates=500
                ),
            ),
            front_end=KaldiFbank(then=(Normalise(),)),
            # The subsampling has 32 channels instead of 64, because it takes much of the time of a small model.
            encoder=Conformer.tiny(subsampling_channels=32, taps=("layer_1",)),
            heads=HEADS[MODEL],
            primary=MODEL,
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/dev.jsonl",),
            # The language model corrects misspelt words, so characters are better than words as labels.
            tokenizer=TokenizerSettings(kind="characters"),
            # A batch has at most 46 s of audio with padding, and an even number of utterances.
            batching=Batching.planned(num_buckets=5, seconds=46.0, row_multiple=2),
            # Each utterance at four speeds stands for more speakers than the 66 of the training set.
            speeds=(0.85, 1.0, 1.15, 1.3),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=2e-3, warmup_updates=300, decay="cosine")),
        # The averaged parameters, over about the last 500 updates, are validated and used for recognition.
        training=Training(num_updates=6000, ema=EMA(0.998), validation=Validation(every=2000), log_every=100),
    )
