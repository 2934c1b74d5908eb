"""Squeezeformer-M with CTC on LibriSpeech 960 h.

Paper     Kim et al. 2022, "Squeezeformer: An Efficient Transformer for Automatic Speech Recognition"
          (arXiv:2206.00888); code: kssteven418/Squeezeformer, which contains the model, its augmentation and the
          constants of AdamW, but no training loop. Batch, schedule and epochs are from NVIDIA/NeMo
          examples/asr/conf/squeezeformer, which quotes the paper; weight decay is from
          PositiveLoss/squeezeformer-ukrainian (NeMo uses 4e-5)
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/squeezeformer_librispeech.py
          with less memory: --data.batching.budget 3150 --training.accumulate 4
Expected  WER 2.56 / 6.50 on test-clean / test-other with greedy decoding, as in kssteven418/Squeezeformer's README for
          this size; NeMo's own training has 2.6 / 6.3. Not yet measured with this package.
          The paper does not state the following settings: gradient clipping, averaging of parameters, which parameters
          have weight decay, the longest utterance (here 16.7 s, as NeMo) and the number of pieces (here 128 labels with
          the blank).
Time      not published. Estimate: training needs 8.8 GFLOP per second of audio, three times a forward pass. 480,000 h
          of audio then take 4 hours on one H100 at its bf16 peak, and 14 hours at 30 % of the peak.
Sizes     encoder                 peak learning rate   time masks   utterances per update
          .xs() .s() .sm()        2e-3                 5            1024
          .m()                    1.5e-3               7            1024
          .ml() .l()              1e-3                 10           2048
          (NeMo uses 1.5e-3 for SM and 5e-4 for L.)
"""

from asr_jax.audio.presets import squeezeformer
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import InverseEpoch
from asr_jax.text.tokenizers import TokenizerSettings

BATCH_S = 1024 * 12.3  # the mean duration of LibriSpeech's utterances is 12.3 s
MANIFESTS = "data/librispeech/manifests"


def experiment() -> Experiment:
    return Experiment(
        name="squeezeformer_librispeech",
        model=Model(
            front_end=squeezeformer(),
            augment=(SpecAugment.nemo(num_time_masks=7, max_width_share=0.05),),
            encoder=Squeezeformer.m(),
            heads={"ctc": CTC(dropout=0.0, weight_by="utterances")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=128),
            filters=Filters(max_duration_s=16.7),
            batching=Batching.planned(num_buckets=12, seconds=BATCH_S, max_rows=4096, row_multiple=8),
            workers=8,
        ),
        optim=AdamW(
            schedule=InverseEpoch(peak_lr=1.5e-3, warmup_epochs=20, hold_epochs=160, exponent=1.0),
            b1=0.9,
            b2=0.98,
            eps=1e-9,
            weight_decay=5e-4,
            clip_at=1.0,
        ),
        training=Training(
            num_epochs=500, precision="bf16", ema=EMA(0.999), validation=Validation(every=2000), log_every=50
        ),
    )
