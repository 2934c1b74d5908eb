"""Config of a short run with all kinds of state: statistics, dropout, augmentation, accumulation, speeds.

The model is one of the package, so its traced programs are stored between starts, as in real runs.
"""

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Training
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay


def experiment() -> Experiment:
    block = ConvBlock(16, 3, stride=2, residual="none", separable=False, dropout=0.1)
    model = Model(
        encoder=QuartzNet(num_mels=20, blocks=(block,)),
        heads={"ctc": CTC(dropout=0.0)},
        front_end=KaldiFbank(num_mels=20),
        augment=(SpecAugment(max_freq_bins=3, num_time_masks=1, max_time_frames=5, max_time_share=0.1),),
    )
    data = Data(
        train=("train.jsonl",),
        validation=("validation.jsonl",),
        buckets=Buckets(num=1, batch_seconds=4.0, batch_multiple=4),
        speeds=(0.9, 1.0),
    )
    return Experiment(
        name="resume",
        model=model,
        data=data,
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=1e-2, warmup_updates=2)),
        training=Training(num_updates=6, accumulate=2, validate_every=3, validate_loss=True, log_every=2, ema=EMA(0.9)),
    )
