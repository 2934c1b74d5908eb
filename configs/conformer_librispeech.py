"""Conformer-CTC large on LibriSpeech 960 h with NeMo's recipe.

Paper     Gulati et al. 2020, "Conformer" (arXiv:2005.08100), with a CTC head; recipe: NVIDIA/NeMo
          examples/asr/conf/conformer/conformer_ctc_bpe.yaml at commit 8cfedd72. Its comments list the other sizes:
          `Conformer.small()` and `medium()` use 5 time masks and a factor of 5.0 instead of 2.0 in the peak rate
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/conformer_librispeech.py
Expected  WER 2.7 / 6.0 on test-clean / test-other with greedy decoding and no language model (NeMo's
          stt_en_conformer_ctc_large_ls; medium 3.0 / 7.3, small 3.4 / 8.8: docs/source/asr/data/scores/en/
          conformer_en.csv). Not yet measured with this package.
          Differences: batch statistics are over valid frames only (`norm="batch_padded"` matches NeMo). In this config:
          evaluation uses averaged parameters.
Time      GPUs and hours are not published. NeMo's model cards mention several hundred epochs; its settings allow at
          most 1000.
"""

from asr_jax.audio.presets import nemo
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/librispeech/manifests"
ENCODER = Conformer.large()
WARMUP = 10_000
# Noam's schedule: rate · dim^-½ · min(u^-½, u · warm-up^-1.5). Its peak is at the end of the warm-up.
PEAK_LR = 2.0 * ENCODER.dim**-0.5 * WARMUP**-0.5


def experiment() -> Experiment:
    return Experiment(
        name="conformer_librispeech",
        model=Model(
            front_end=nemo(num_mels=80),
            augment=(SpecAugment.nemo(num_time_masks=10),),
            encoder=ENCODER,
            heads={"ctc": CTC(dropout=0.0, weight_by="utterances")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=129),  # 128 pieces and the blank
            filters=Filters(min_duration_s=0.1, max_duration_s=16.7),
            # Four batches per update: 2000 utterances with a mean of 12.3 s, which is NeMo's global batch.
            batching=Batching.planned(num_buckets=12, seconds=6200.0, row_multiple=8),
            workers=8,
        ),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=PEAK_LR, min_lr=1e-6, warmup_updates=WARMUP, decay="inverse_sqrt"),
            b1=0.9,
            b2=0.98,
            weight_decay=1e-3,
            decay_factors=EVERYTHING,
            clip_at=0.0,
        ),
        training=Training(
            num_epochs=1000,
            accumulate=4,
            precision="bf16",
            ema=EMA(0.999),
            validation=Validation(every=1000),
            log_every=50,
        ),
    )
