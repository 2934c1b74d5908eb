"""RNN-T with LSTMs as CAIMAN-ASR's base model, 84.7 M parameters, for streaming.

Paper     He et al. 2018, "Streaming end-to-end speech recognition for mobile devices" (arXiv:1811.06621); recipe:
          Myrtle's CAIMAN-ASR 1.14, training/configs/base-8703sp.yaml and docs/src/training
Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl; the published models use about
          13,000 hours
Command   python -m asr_jax.train --config configs/rnnt_base.py --data.train TRAIN.jsonl
          configs/rnnt_testing.py (49.0 M parameters) and configs/rnnt_large.py (195.6 M) are changes of this one
Expected  not yet measured with this package
Time      not published for these data
Recipe    LAMB; 1,632 updates of warm-up, 18,000 of hold, then half-lives of 10,880; 100,000 updates of 1,024 utterances
          or more; the joint network's last layer learns at 0.343 of the rate; SpecAugment with 10 time masks of at most
          3 % of an utterance each; a delay penalty of 0.01 once a validation has less than 30 % WER.
Memory    --model.heads.transducer.split S (batch_split_factor) and --training.accumulate change memory and speed alone.
          The logits exist for a few frames at a time, so that the vocabulary has little influence on memory.
Differs   Each utterance is normalised by its own statistics until `front_end` has statistics of the data set (python -m
          asr_jax.feature_statistics), which streaming needs. In this config: no noise is added.
"""

from asr_jax.audio.presets import rnnt
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Saving, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.transducer import Transducer
from asr_jax.losses.transducer import Penalties, Since
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, LAMB
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings


def experiment() -> Experiment:
    return Experiment(
        name="rnnt_base",
        model=Model(
            front_end=rnnt(),
            augment=(SpecAugment.rnnt(),),
            encoder=LSTMEncoder.base(),
            heads={
                "transducer": Transducer(
                    prediction=LSTMPrediction(512, num_layers=2),
                    joint_dim=768,
                    penalties=Penalties(delay=0.01, delay_since=Since(wer=0.3)),
                )
            },
        ),
        data=Data(
            train=("data/train.jsonl",),
            tokenizer=TokenizerSettings(
                kind="sentencepiece", vocab_size=8704, sampling=0.05, normaliser="no_tags.v1+lower.v1"
            ),
            filters=Filters(min_duration_s=0.05, max_duration_s=20.0),
            batching=Batching.planned(num_buckets=10, num_by_labels=2, seconds=1024.0, row_multiple=8),
            speeds=(1.0,),
            speed_jitter=0.15,
            trim_db=60.0,
            workers=8,
        ),
        optim=LAMB(
            schedule=WarmupHoldDecay(
                peak_lr=4e-3,
                min_lr=4e-4,
                warmup_updates=1632,
                hold_updates=18000,
                decay="half_life",
                half_life_updates=10880,
            ),
            clip_at=1.0,
            weight_decay=1e-2,
            decay_factors=EVERYTHING,
            lr_factors=(("heads_transducer/output/.*", 0.343), ("rest", 1.0)),
        ),
        training=Training(
            num_updates=100_000,
            accumulate=8,
            precision="bf16",
            ema=EMA(0.999),
            validation=Validation(every=1000),
            saving=Saving(every_minutes=30.0),
            pass_states=StatePassing((99.0, 0.0, 1.0), after=52_272),  # warm-up, hold and three half-lives
        ),
    )
