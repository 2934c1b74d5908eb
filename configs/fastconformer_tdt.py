"""FastConformer large with a token-and-duration transducer (TDT) and CTC on LibriSpeech 960 h, with NeMo's recipe.

Paper     Xu et al. 2023, "Efficient Sequence Transduction by Jointly Predicting Tokens and Durations"
          (arXiv:2304.06795); recipe: NVIDIA/NeMo
          examples/asr/conf/fastconformer/hybrid_transducer_ctc/fastconformer_hybrid_tdt_ctc_bpe.yaml at commit ce1f5cdf
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/fastconformer_tdt.py
          evaluate and transcribe use the transducer; --head ctc uses the CTC head
Expected  NeMo publishes no such model that is trained on these 960 h only. Not yet measured with this package.
          Differences: batch statistics are over valid frames only. In this config: the share of the plain RNN-T loss
          (omega) is part of every batch's loss, while NeMo draws one of the two losses for each batch; evaluation uses
          averaged parameters.
Recipe    115.4 M parameters; durations 0 1 2 3 4; sigma 0.02, omega 0.1; 0.7 of the transducer's loss and 0.3 of CTC's;
          Noam's schedule with 10,000 updates of warm-up.
Memory    --model.heads.transducer.split S computes the joint network and the loss for B/S utterances at a time, as
          NeMo's fused_batch_size: 4 of 16 utterances there, so 4 parts here. Only memory and speed depend on it.
Time      GPUs and hours are not published. NeMo's settings allow at most 500 epochs.
"""

from asr_jax.audio.presets import nemo
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/librispeech/manifests"
ENCODER = Conformer.fast("large", num_mels=128, num_layers=17)
WARMUP = 10_000
# Noam's schedule: rate · dim^-½ · min(u^-½, u · warm-up^-1.5). Its peak is at the end of the warm-up.
PEAK_LR = 5.0 * ENCODER.dim**-0.5 * WARMUP**-0.5


def experiment() -> Experiment:
    return Experiment(
        name="fastconformer_tdt",
        model=Model(
            front_end=nemo(num_mels=128),
            augment=(SpecAugment.nemo(num_time_masks=10),),
            encoder=ENCODER,
            heads={
                "transducer": Transducer(
                    prediction=LSTMPrediction(640, num_layers=1, dropout=0.2, weight_scale=1.0),
                    joint_dim=640,
                    activation="relu",
                    dropout=0.2,
                    scale=0.7,
                    durations=(0, 1, 2, 3, 4),
                    sigma=0.02,
                    omega=0.1,
                    split=4,
                ),
                "ctc": CTC(dropout=0.0, weight_by="utterances", scale=0.3),
            },
            primary="transducer",
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=1025),  # 1024 pieces and the blank
            filters=Filters(min_duration_s=0.1, max_duration_s=40.0),
            # Two batches per update: 2000 utterances with a mean of 12.3 s, the global batch of NeMo's other recipes.
            batching=Batching.planned(num_buckets=12, seconds=12_400.0, row_multiple=8, max_rows=2048),
            workers=8,
        ),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=PEAK_LR, min_lr=1e-6, warmup_updates=WARMUP, decay="inverse_sqrt"),
            b1=0.9,
            b2=0.98,
            weight_decay=1e-3,
            decay_factors=EVERYTHING,
            clip_at=1.0,
        ),
        training=Training(
            num_epochs=500,
            accumulate=2,
            precision="bf16",
            ema=EMA(0.999),
            validation=Validation(every=1000),
            log_every=50,
        ),
    )
