"""Squeezeformer with the recipe of seed 003's Rust trainer (`--architecture squeezeformer`), without its defects.

Paper     seed 003, "Training With The Rust Burn Trainer": RustedBytes/w2v-bert-uk src/squeezeformer.rs, src/train.rs at
          commit adec09e4, after PositiveLoss/squeezeformer-ukrainian; the model of Kim et al. 2022 (arXiv:2206.00888)
Data      any manifests: --data.train TRAIN.jsonl; without --data.validation, a tenth of them is the validation set
Command   python -m asr_jax.train --config configs/squeezeformer_rust.py --data.train TRAIN.jsonl
          Its --variant SIZE is encoder=Squeezeformer.rust("xs") … "l"; custom sizes:
          --model.encoder.dim 256 --model.encoder.num-layers 16 --model.encoder.num-heads 4
Expected  no error rate is published
Time      not published
Recipe    Its defaults: 500 epochs; AdamW (0.9, 0.999, eps 1e-5, weight decay 5e-4 of all parameters); peak learning
          rate 3e-4 for every size (the minimum of this and the paper's); 20 epochs of warm-up, 160 of hold, then a
          factor of 20 / (epoch - 160); 8 utterances per batch; float32. From its examples, because they are off by
          default: masks, gain, noise, clipping of each tensor's gradient norm at 5, and averaged parameters. The other
          schedule of the examples, in steps, is WarmupHoldDecay(peak_lr=1e-3, warmup_updates=1000, decay="linear",
          decay_updates=20000, counts_from=1).
Differs   Upsampled frames are in order; batches are shuffled; norm statistics exclude padding; the average starts with
          the live parameters. In this config: the number of pieces is 128, as in the Python trainer, because the Rust
          trainer does not state it.
"""

from asr_jax.audio.distort import Gain, UniformNoise
from asr_jax.audio.presets import rust_squeezeformer
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import InverseEpoch
from asr_jax.text.tokenizers import TokenizerSettings


def experiment() -> Experiment:
    return Experiment(
        name="squeezeformer_rust",
        model=Model(
            front_end=rust_squeezeformer(),
            augment=(
                Gain(db=(-3.0, 3.0)),
                UniformNoise(level=(0.003, 0.003)),
                SpecAugment.rust(num_time_masks=2, max_time_frames=40, num_freq_masks=2, max_freq_bins=12),
            ),
            encoder=Squeezeformer.rust("sm"),
            heads={"ctc": CTC()},
        ),
        data=Data(
            train=("data/train.jsonl",),
            validation_share=0.1,
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=128),
            batching=Batching(budget=8, unit="utterances", row_multiple=1),
        ),
        optim=AdamW(
            schedule=InverseEpoch(peak_lr=3e-4, warmup_epochs=20, hold_epochs=160, exponent=1.0),
            b1=0.9,
            b2=0.999,
            eps=1e-5,
            weight_decay=5e-4,
            decay_factors=EVERYTHING,
            clip="tensor_norm",
            clip_at=5.0,
        ),
        training=Training(num_epochs=500, ema=EMA(0.9999), validation=Validation(each_epoch=True), log_every=10),
    )
