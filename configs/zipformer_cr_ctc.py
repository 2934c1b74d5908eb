"""Zipformer-M with consistency-regularised CTC on LibriSpeech 960 h, the best published CTC without language model.

Paper     Yao et al. 2024, "CR-CTC: Consistency regularization on CTC for improved speech recognition"
          (arXiv:2410.05101); recipe: k2-fsa/icefall egs/librispeech/ASR/zipformer --use-cr-ctc, pull request 1766
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/zipformer_cr_ctc.py
          S, with a peak learning rate of 0.04 and 2 × 850 s of audio per batch:
            --model.encoder.dims 192 256 256 256 256 256 --model.encoder.num-layers 2 2 2 2 2 2
            --model.encoder.unmasked-dims 192 192 192 192 192 192
            --model.encoder.feedforward-dims 512 768 768 768 768 768 --optim.schedule.peak-lr 0.04
            --data.batching.budget 1700 --model.encoder.batches-per-update 2.83
          L: --model.encoder.dims 192 256 512 768 512 256 --model.encoder.num-layers 2 2 4 5 4 2
            --model.encoder.unmasked-dims 192 192 256 320 256 192
            --model.encoder.feedforward-dims 512 768 1536 2048 1536 768
          or use Zipformer.small(…) or large(…) below
Expected  WER on test-clean / test-other with greedy decoding, as published (icefall's RESULTS.md; 50 epochs, float16):
            S  2.57 / 5.95   22.1 M parameters, 2 V100 of 32 GB, 850 s each, average of the last 25 epochs
            M  2.12 / 4.62   64.3 M parameters, 4 V100 of 32 GB, 700 s each, average of the last 24 epochs
            L  2.03 / 4.37  147.0 M parameters, 2 A100 of 80 GB, 1400 s each, average of the last 26 epochs
          Not yet measured with this package.
          Differences: an exponential moving average instead of the mean over the last epochs, which python -m
          asr_jax.average computes. In this config: bfloat16; noise from MUSAN only if MUSAN is set below.
Time      not published. Each utterance is computed twice, so an epoch takes about twice as long as with
          configs/zipformer.py.
"""

from asr_jax.audio.distort import BackgroundNoise
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.specaugment import SpecAugment, TimeWarp
from asr_jax.config import Experiment, Training, Validation
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

BATCH_S = 2800.0  # each second counts once, although it is computed in two views
MANIFESTS = "data/librispeech/manifests"
MUSAN = ""  # folder of the MUSAN corpus, to add noise to half of the utterances as published; empty: no noise
NOISE = Ramp(first=(10.0, 20.0), last=(10.0, 20.0))


def experiment() -> Experiment:
    return Experiment(
        name="zipformer_cr_ctc",
        model=Model(
            front_end=KaldiFbank(num_mels=80),
            augment=(
                *([BackgroundNoise(probability=0.5, folder=MUSAN, minutes=240.0, snr_db=NOISE)] if MUSAN else []),
                TimeWarp(),  # both views are warped equally
                SpecAugment(num_time_masks=25, max_time_share=0.375),  # 2.5 times the time masking of plain CTC
            ),
            encoder=Zipformer.medium(batches_per_update=BATCH_S / 600),  # the recipe's schedules count batches of 600 s
            heads={"ctc": CTC(dropout=0.1, consistency=0.2)},
            views=2,
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=500),
            filters=Filters(min_duration_s=1.0, max_duration_s=20.0),
            batching=Batching.planned(num_buckets=12, seconds=BATCH_S, row_multiple=8),
            speeds=(0.9, 1.0, 1.1),
            workers=8,
        ),
        optim=ScaledAdam(schedule=Eden(peak_lr=0.045, warmup_start=0.1)),
        training=Training(
            num_epochs=50, precision="bf16", ema=EMA(0.9999), validation=Validation(every=2000), log_every=50
        ),
    )
