"""Zipformer-M with CTC on LibriSpeech 960 h.

Paper     Yao et al. 2023, "Zipformer: A faster and better encoder for automatic speech recognition" (arXiv:2310.11230);
          recipe: k2-fsa/icefall egs/librispeech/ASR/zipformer
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/zipformer.py
Expected  WER 2.52 / 6.02 on test-clean / test-other, the figures published for this model with CTC alone (icefall pull
          request 1766: 64.3 M parameters, 50 epochs, ScaledAdam, average of the last checkpoints). Not yet measured
          here: AdamW takes ScaledAdam's place, with which a transducer of this size lost 0.5 on test-other (icefall
          pull request 1708: Adam, Noam schedule, 70 epochs); noise from MUSAN and time warping are not in this recipe.
Time      icefall takes 67 minutes per epoch (2,880 h with the three speeds) on four V100 for the transducer.
"""

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training
from asr_jax.data.buckets import Buckets
from asr_jax.data.dataset import Data
from asr_jax.data.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizer import TokenizerSettings

BATCH_S = 4000.0
MANIFESTS = "data/librispeech/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="zipformer",
        model=Model(
            front_end=KaldiFbank(num_mels=80),
            augment=(SpecAugment(),),
            encoder=Zipformer.medium(batches_per_update=BATCH_S / 600),  # the recipe's schedules count 600 s a batch
            heads={"ctc": CTC(dropout=0.1)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=500),
            filters=Filters(min_duration_s=1.0, max_duration_s=20.0),
            buckets=Buckets(num=12, batch_seconds=BATCH_S, batch_multiple=8),
            speeds=(0.9, 1.0, 1.1),
            workers=8,
        ),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=1e-3, warmup_updates=5000, decay="inverse_sqrt"),
            b1=0.9,
            b2=0.98,
            weight_decay=0.01,
            clip_at=1.0,
        ),
        training=Training(num_epochs=50, precision="bf16", ema=EMA(0.9999), validate_every=2000, log_every=50),
    )
