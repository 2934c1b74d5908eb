"""Fine-tuning of a pre-trained wav2vec 2.0 with CTC on letters, with NVIDIA's and the paper's recipes.

Model     --init-from is the path of a run of configs/wav2vec2_pretrain.py, of a Hugging Face folder
          (facebook/wav2vec2-base, wav2vec2-large-lv60, wav2vec2-base-960h, …) or of a checkpoint of fairseq or NVIDIA
          (.pt). Sizes are read from it
Data      python scripts/prepare_librispeech.py --librispeech DIR; or any manifests: --data.train TRAIN.jsonl
          --data.validation VALIDATION.jsonl. The labels are the letters of the training texts
Command   RECIPE=base_100h python -m asr_jax.train --config configs/wav2vec2_finetune.py --init-from PRETRAINED
          RECIPE: base_960h (the default), base_100h, base_10h, base_1h, vox_960h, vox_100h, vox_960h_cv; for your own
          data, the recipe with a similar number of hours
Recipe    NVIDIA/DeepLearningExamples PyTorch/SpeechRecognition/wav2vec2, scripts/finetune_*.sh at commit 729963dd: the
          extractor is frozen, and in some recipes also the other layers for the first updates; warm-up, hold and
          exponential decay over 10, 40 and 50 % of the updates
Expected  base_960h: WER 8.88 % on dev-other (NVIDIA's README, median of eight runs). The paper, on test-clean /
          test-other without a language model: base_960h 3.4 / 8.5, base_100h 6.1 / 13.3, vox_960h 2.2 / 4.5, vox_100h
          3.1 / 6.3. Not yet measured with this package.
          Differences: recordings longer than 30 s are not used; the number of masked frames of an utterance depends on
          its length (NVIDIA and the paper: the same number for all utterances of a GPU's batch, given by the shortest
          one). In this config: bfloat16.
Time      base_960h: 6.5 hours on eight A100, after 48.1 hours of pre-training (NVIDIA)
"""

import os
from dataclasses import replace
from typing import NamedTuple

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment, Init, Training, Validation, model_of
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import NEVER, FairseqAdam
from asr_jax.optim.schedules import TriStage
from asr_jax.pretrained.encoders import check_fits_config, ctc_of, describes_itself
from asr_jax.pretrained.wav2vec2_fairseq import OF_PRETRAINING
from asr_jax.text.tokenizers import TokenizerSettings


class Recipe(NamedTuple):
    """Settings that depend on the recipe."""

    train: str
    peak_lr: float
    num_updates: int
    freeze_updates: int
    """Number of updates in which only the head is trained."""
    time_mask: float
    channel_mask: float
    batch_samples: int
    """Samples per batch of eight GPUs together."""
    is_large: bool = False


BASE, VOX = 8 * 3_200_000, 8 * 1_280_000
RECIPES = {
    "base_960h": Recipe("train-960", 1e-4, 320_000, 0, 0.5, 0.1, BASE),
    "base_100h": Recipe("train-clean-100", 3e-5, 80_000, 0, 0.65, 0.5, BASE),
    "base_10h": Recipe("train-10h", 5e-5, 20_000, 10_000, 0.65, 0.5, BASE),
    "base_1h": Recipe("train-1h", 5e-5, 13_000, 10_000, 0.65, 0.25, BASE),
    "vox_960h": Recipe("train-960", 3e-5, 320_000, 10_000, 0.5, 0.25, 3 * VOX, is_large=True),
    "vox_100h": Recipe("train-clean-100", 3e-5, 80_000, 10_000, 0.5, 0.5, 2 * VOX, is_large=True),
    "vox_960h_cv": Recipe("train-960", 2e-5, 80_000, 0, 0.25, 0.5, 3 * VOX, is_large=True),
}
MANIFESTS = "data/librispeech/manifests"
RECIPE = os.environ.get("RECIPE", "base_960h")


def experiment(init_from: str = "") -> Experiment:
    if RECIPE not in RECIPES:
        raise ValueError(f"RECIPE is {RECIPE}: expected one of {', '.join(RECIPES)}")
    recipe = RECIPES[RECIPE]
    random = Wav2Vec2.large() if recipe.is_large else Wav2Vec2.base_hourglass()
    encoder, front_end = model_of(init_from) or (random, wav2vec2(normalise=recipe.is_large))
    head = ctc_of(init_from) if describes_itself(init_from) else CTC()
    check_fits_config(encoder, init_from, config="configs/wav2vec2_finetune.py")
    return Experiment(
        name=f"wav2vec2_finetune_{RECIPE}",
        model=Model(
            front_end=front_end,
            augment=(),
            encoder=replace(
                encoder,
                time_mask=SpanMask(recipe.time_mask, 10, same_count=False),
                channel_mask=SpanMask(recipe.channel_mask, 64, min_spans=0, same_count=False),
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.1,
                input_dropout=0.0,
                feature_dropout=0.0,
                layer_drop=0.1,
                extractor_gradient=0.0,
                taps=(),
            ),
            heads={"ctc": replace(head, dropout=0.0, weight_by="utterances")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/{recipe.train}.jsonl",),
            validation=(f"{MANIFESTS}/dev-other.jsonl",),
            tokenizer=TokenizerSettings(kind="characters"),
            filters=Filters(max_duration_s=30.0),
            batching=Batching.planned(num_buckets=12, seconds=recipe.batch_samples / 16000, row_multiple=8),
            workers=8,
        ),
        # Fine-tuned models such as wav2vec2-base-960h were published without the embedding of masked frames.
        init=Init(path=init_from, new=("heads_.*", "encoder/mask", OF_PRETRAINING)),
        optim=FairseqAdam(
            schedule=TriStage(peak_lr=recipe.peak_lr, rate_set="before_run_and_after_update"),
            b1=0.9,
            b2=0.98,
            eps=1e-8,
            weight_decay=0.0,
            clip_at=0.0,
            freeze_updates=(
                ("encoder/extractor/.*", NEVER),
                ("encoder/(?!extractor/).*", recipe.freeze_updates),
                ("rest", 0.0),
            ),
        ),
        training=Training(
            num_updates=recipe.num_updates,
            precision="bf16",
            ema=EMA(0.0),
            validation=Validation(every=2000),
            log_every=100,
        ),
    )
