"""Settings of model.pt, which contains weights alone."""

from dataclasses import replace

from asr_jax.audio.presets import quartznet
from asr_jax.config import Experiment
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.text.tokenizers import TokenizerSettings

FRONT_END = replace(
    quartznet(), dither=0.0, dither_mean=False
)  # NVIDIA's draws noise in evaluation too, unless it is 0
BLOCKS = (
    ConvBlock(width=24, kernel_size=11, repeat=1, stride=2, separable=True, residual="none"),
    ConvBlock(width=24, kernel_size=7, repeat=2, separable=True, residual="add"),
    ConvBlock(width=32, kernel_size=1, repeat=1, separable=True, residual="none"),
)


def experiment() -> Experiment:
    return Experiment(
        name="quartznet",
        model=Model(QuartzNet(num_mels=64, blocks=BLOCKS), {"ctc": CTC()}, FRONT_END, augment=()),
        data=Data(
            train=(),
            tokenizer=TokenizerSettings(alphabet=" abcdefghijklmnopqrstuvwxyz'", normaliser="english_letters.v1"),
        ),
    )
