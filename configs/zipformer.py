"""Zipformer-M with CTC on LibriSpeech 960 h.

Paper     Yao et al. 2023, "Zipformer: A faster and better encoder for automatic speech recognition" (arXiv:2310.11230);
          recipe: k2-fsa/icefall egs/librispeech/ASR/zipformer
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/zipformer.py
          S: --model.encoder.dims 192 256 256 256 256 256 --model.encoder.num-layers 2 2 2 2 2 2
            --model.encoder.unmasked-dims 192 192 192 192 192 192
            --model.encoder.feedforward-dims 512 768 768 768 768 768 --optim.schedule.peak-lr 0.04
          L: --model.encoder.dims 192 256 512 768 512 256 --model.encoder.num-layers 2 2 4 5 4 2
            --model.encoder.unmasked-dims 192 192 256 320 256 192
            --model.encoder.feedforward-dims 512 768 1536 2048 1536 768
          or use Zipformer.small(…) or large(…) below
Expected  WER on test-clean / test-other, as published for CTC alone (icefall pull request 1766; average of the last
          checkpoints): M 2.52 / 6.02 (64.3 M parameters), S 2.85 / 6.89 (22.1 M), L 2.50 / 5.72 (147.0 M). That table
          does not state the number of epochs, and the CR-CTC paper trains plain CTC for twice as many epochs as CR-CTC;
          expect slightly higher WERs after the 50 epochs here. Not yet measured with this package.
          Differences: an exponential moving average instead of the mean over the last epochs, which python -m
          asr_jax.average computes. In this config: bfloat16 instead of float16; noise from MUSAN only if MUSAN is set
          below.
          configs/zipformer_cr_ctc.py is the better recipe.
Time      67 minutes per epoch (2,880 h with three speeds) on four V100 for the transducer (icefall)
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

BATCH_S = 4000.0
MANIFESTS = "data/librispeech/manifests"
MUSAN = ""  # folder of the MUSAN corpus, to add noise to half of the utterances as published; empty: no noise
NOISE = Ramp(first=(10.0, 20.0), last=(10.0, 20.0))


def experiment() -> Experiment:
    return Experiment(
        name="zipformer",
        model=Model(
            front_end=KaldiFbank(num_mels=80),
            augment=(
                *([BackgroundNoise(probability=0.5, folder=MUSAN, minutes=240.0, snr_db=NOISE)] if MUSAN else []),
                TimeWarp(),
                SpecAugment(),
            ),
            encoder=Zipformer.medium(batches_per_update=BATCH_S / 600),  # the recipe's schedules count batches of 600 s
            heads={"ctc": CTC(dropout=0.1)},
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
