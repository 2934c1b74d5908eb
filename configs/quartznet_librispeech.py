"""QuartzNet 15x5 with CTC and characters on LibriSpeech 960 h with NVIDIA's recipe.

Paper     Kriman et al. 2020, "QuartzNet: Deep automatic speech recognition with 1D time-channel separable convolutions"
          (arXiv:1910.10261); recipe: NVIDIA/DeepLearningExamples PyTorch/SpeechRecognition/QuartzNet, scripts/train.sh
          and configs/quartznet15x5_speedp-online-1.15_speca.yaml at commit 729963dd
Data      python scripts/prepare_librispeech.py --librispeech DIR
Command   python -m asr_jax.train --config configs/quartznet_librispeech.py
Expected  WER 3.69 / 10.69 on test-clean / test-other with greedy decoding and averaged parameters, as published in
          NVIDIA's README for this recipe. Its eight seeds have 3.81 ± 0.10 / 10.73 ± 0.21, and 3.54 ± 0.07 /
          10.76 ± 0.15 on dev-clean / dev-other. Not yet measured with this package.
          Differences: norms use the statistics of the valid frames of all GPUs (NVIDIA: of each GPU, with padding); the
          learning rate is set before each update, not after it; the average quickly forgets the initial parameters;
          validation sets keep the silence at their ends and have no dither. In this config: bfloat16 instead of
          float16.
Time      34 hours on eight A100 80GB in mixed precision (NVIDIA). Fewer GPUs reproduce the results with a larger
          --training.accumulate and a smaller --data.batching.budget, if their product remains 1152 utterances
Variants  --model.encoder.copies 1 or 2 is QuartzNet 5x5 or 10x5. NVIDIA's drop0.2 is --model.encoder.dropout 0.2
          --model.augment.0.max-freq-bins 20 --model.augment.0.max-time-frames 75
"""

from asr_jax.audio.presets import quartznet
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import NovoGrad
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/librispeech/manifests"
UTTERANCES, ACCUMULATE = 8 * 144, 2


def experiment() -> Experiment:
    return Experiment(
        name="quartznet",
        model=Model(
            front_end=quartznet(),
            augment=(SpecAugment.quartznet(),),  # NVIDIA's recipe does not use Cutout
            encoder=QuartzNet.of_15x5(),
            heads={"ctc": CTC(dropout=0.0, weight_by="utterances")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train-960.jsonl",),
            validation=(f"{MANIFESTS}/dev-clean.jsonl", f"{MANIFESTS}/dev-other.jsonl"),
            tokenizer=TokenizerSettings(
                kind="characters",
                alphabet=" abcdefghijklmnopqrstuvwxyz'",  # in NVIDIA's order, to load its weights
                normaliser="english_letters.v1",
            ),
            filters=Filters(max_duration_s=16.7),
            trim_db=60.0,
            batching=Batching(
                num_buckets=8,
                budget=UTTERANCES / ACCUMULATE,
                unit="utterances",
                max_rows=UTTERANCES // ACCUMULATE,
                row_multiple=8,
            ),
            # NVIDIA's rates of DALI, 0.85 to 1.15, multiply durations: both ends of these speeds are the same.
            speeds=((1 / 0.85 + 1 / 1.15) / 2,),
            speed_jitter=(1 / 0.85 - 1 / 1.15) / 2,
            workers=8,
        ),
        optim=NovoGrad(
            schedule=WarmupHoldDecay(
                peak_lr=0.01,
                min_lr=1e-5,
                warmup_updates=0,
                warmup_epochs=2,
                hold_epochs=140,
                decay="exponential",
                gamma=0.981,
            ),
            b1=0.95,
            b2=0.0,
            weight_decay=1e-3,
        ),
        training=Training(
            num_epochs=260,
            accumulate=ACCUMULATE,
            precision="bf16",
            ema=EMA(0.999),
            validation=Validation(every=1000),
            log_every=50,
        ),
    )
