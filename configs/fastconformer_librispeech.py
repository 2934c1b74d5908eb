"""FastConformer-CTC large on LibriSpeech 960 h with NeMo's recipe.

Paper     Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient Speech Recognition"
          (arXiv:2305.05084); recipe: NVIDIA/NeMo examples/asr/conf/fastconformer/fast-conformer_ctc_bpe.yaml at commit
          8cfedd72, with 256 pieces, which it recommends for about 1000 h
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/fastconformer_librispeech.py
Expected  NeMo publishes no CTC model of this size that is trained on these 960 h only. The one trained on 25,000 h has
          WER 2.1 / 4.2 on test-clean / test-other with greedy decoding (stt_en_fastconformer_ctc_large,
          docs/source/asr/data/scores/en/fastconformer_en.csv). Conformer-CTC large on 960 h has 2.7 / 6.0; both
          architectures have about the same accuracy (docs/source/asr/models.rst). Not yet measured with this package.
          Differences: batch statistics are over valid frames only. In this config: evaluation uses averaged parameters.
Time      GPUs and hours are not published. NeMo's settings allow at most 1000 epochs. The encoder is about 2.4 times as
          fast as Conformer's (docs/source/asr/models.rst).
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


def experiment() -> Experiment:
    return Experiment(
        name="fastconformer_librispeech",
        model=Model(
            front_end=nemo(num_mels=80),
            augment=(SpecAugment.nemo(num_time_masks=10),),
            encoder=Conformer.fast("large"),
            heads={"ctc": CTC(dropout=0.0, weight_by="labels")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=257),  # 256 pieces and the blank
            filters=Filters(min_duration_s=0.1, max_duration_s=16.7),
            # Two batches per update: 2000 utterances with a mean of 12.3 s, which is NeMo's global batch.
            batching=Batching.planned(num_buckets=12, seconds=12_400.0, row_multiple=8, max_rows=2048),
            workers=8,
        ),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=1e-3, warmup_updates=15_000, decay="cosine", final_share=0.1),
            b1=0.9,
            b2=0.98,
            weight_decay=1e-3,
            decay_factors=EVERYTHING,
            clip_at=0.0,
        ),
        training=Training(
            num_epochs=1000,
            accumulate=2,
            precision="bf16",
            ema=EMA(0.999),
            validation=Validation(every=1000),
            log_every=50,
        ),
    )
