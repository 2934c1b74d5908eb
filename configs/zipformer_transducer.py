"""Zipformer-M with icefall's pruned transducer on LibriSpeech 960 h, with CR-CTC beside it if CR_CTC is set.

Paper     Yao et al. 2023, "Zipformer: A faster and better encoder for automatic speech recognition" (arXiv:2310.11230);
          Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training" (arXiv:2206.13236); recipe:
          k2-fsa/icefall egs/librispeech/ASR/zipformer
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/zipformer_transducer.py
          S: --model.encoder.dims 192 256 256 256 256 256 --model.encoder.num-layers 2 2 2 2 2 2
            --model.encoder.unmasked-dims 192 192 192 192 192 192
            --model.encoder.feedforward-dims 512 768 768 768 768 768
          L: --model.encoder.dims 192 256 512 768 512 256 --model.encoder.num-layers 2 2 4 5 4 2
            --model.encoder.unmasked-dims 192 192 256 320 256 192
            --model.encoder.feedforward-dims 512 768 1536 2048 1536 768
          or use Zipformer.small(…) or large(…) below
Expected  WER on test-clean / test-other with greedy decoding, as published (icefall's RESULTS.md; average of the last
          25 of 50 epochs): M 2.22 / 4.87 (65.5 M parameters); L with CR-CTC 1.90 / 3.96 (148.8 M, 2 × 1400 s of audio
          per batch). Not yet measured with this package.
          Differences: an exponential moving average instead of the mean over the last epochs, which python -m
          asr_jax.average computes. In this config: bfloat16 instead of float16; noise from MUSAN only if MUSAN is set
          below.
Recipe    simple loss (scale 0.5, language part 0.25, acoustic part 0) and pruned loss (5 label positions), warmed up
          over 2,000 updates; prediction network of two labels; widths of 512. With CR_CTC, as published for L: CTC
          with a scale of 0.1, a consistency of 0.02, two views and 2.5 times the time masking.
Time      67 minutes per epoch (2,880 h with three speeds) on four V100 (icefall)
"""

from asr_jax.audio.distort import BackgroundNoise
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.specaugment import SpecAugment, TimeWarp
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import ScaledAdam
from asr_jax.optim.schedules import Eden
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.text.tokenizers import TokenizerSettings

CR_CTC = False  # whether a CTC head with consistency of two views is trained too
BATCH_S = 2800.0 if CR_CTC else 4000.0  # each second counts once, although two views compute it twice
MANIFESTS = "data/librispeech/manifests"
MUSAN = ""  # folder of the MUSAN corpus, to add noise to half of the utterances as published; empty: no noise
NOISE = Ramp(first=(10.0, 20.0), last=(10.0, 20.0))


def experiment() -> Experiment:
    heads: dict[str, HeadSettings] = {
        "transducer": Transducer(
            prediction=StatelessPrediction(512, context=2),
            joint_dim=512,
            activation="tanh",
            dropout=0.0,
            weight_by="labels",
            pruning=Pruning(size=5, language_scale=0.25, simple_scale=0.5, warmup=2000),
            decoding=TransducerDecoding(max_symbols=1),
        )
    }
    if CR_CTC:  # the published factor of the consistency does not depend on that of CTC
        heads["ctc"] = CTC(dropout=0.1, scale=0.1, consistency=0.2)
    return Experiment(
        name="zipformer_transducer",
        model=Model(
            front_end=KaldiFbank(num_mels=80),
            augment=(
                *([BackgroundNoise(probability=0.5, folder=MUSAN, minutes=240.0, snr_db=NOISE)] if MUSAN else []),
                TimeWarp(),  # all views are warped equally
                SpecAugment(num_time_masks=25, max_time_share=0.375) if CR_CTC else SpecAugment(),
            ),
            encoder=Zipformer.medium(batches_per_update=BATCH_S / 600),  # the recipe's schedules count batches of 600 s
            heads=heads,
            views=2 if CR_CTC else 1,
            primary="transducer",
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
