"""Zipformer-S with consistency-regularised CTC on a few hours of read speech; seven minutes on one H200.

Paper     Yao et al. 2024, "CR-CTC: Consistency regularization on CTC for improved speech recognition"
          (arXiv:2410.05101); recipe: configs/zipformer_cr_ctc.py
Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl
Command   python -m asr_jax.train --config configs/read_speech_cr_ctc.py --data.train … --data.validation …
LM        python -m asr_jax.ngram --input TRAIN.jsonl --output lm.arpa
          python -m asr_jax.evaluate RUN --data TEST.jsonl --decoding.kind beam --decoding.fusion.kenlm lm.arpa
Recipe    Differs from configs/zipformer_cr_ctc.py: 256 pieces instead of 500, because there are few texts; smaller
          batches, for more updates; the published schedules of dropout and skipping and the decay of the learning rate
          are four to ten times as fast, because there are fewer updates
Expected  not yet measured with this package
Time      A job ends after seven minutes, or after 8,000 updates; the same command continues it. For more time:
          --training.limits.max-hours 0 --training.num-updates 20000
"""

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, TimeWarp
from asr_jax.config import Experiment, Limits, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import ScaledAdam
from asr_jax.optim.schedules import Eden
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/read_speech/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="read_speech_cr_ctc",
        model=Model(
            front_end=KaldiFbank(num_mels=80),
            augment=(TimeWarp(), SpecAugment(num_time_masks=25, max_time_share=0.375)),
            encoder=Zipformer.small(batches_per_update=4.0),
            heads={"ctc": CTC(dropout=0.1, consistency=0.2)},
            views=2,
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=256),
            filters=Filters(min_duration_s=1.0, max_duration_s=20.0),
            batching=Batching.planned(num_buckets=2, seconds=600.0, row_multiple=4),
            speeds=(0.9, 1.0, 1.1),
            workers=12,
        ),
        optim=ScaledAdam(schedule=Eden(peak_lr=0.045, decay_updates=800.0, decay_epochs=0.0, warmup_updates=300.0)),
        training=Training(
            num_updates=8000,
            precision="bf16",
            ema=EMA(0.998),
            validation=Validation(every=1000, live=False),
            limits=Limits(max_hours=7 / 60),
            log_every=50,
        ),
    )
