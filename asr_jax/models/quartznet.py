"""QuartzNet: blocks of time-channel-separable convolutions; Jasper and Citrinet are other blocks of it.

Source: Kriman et al. 2020, "QuartzNet" (arXiv:1910.10261); Li et al. 2019, "Jasper" (arXiv:1904.03288); Majumdar et al.
2021, "Citrinet" (arXiv:2104.01721); NVIDIA's DeepLearningExamples at commit 729963dd, quartznet/model.py; NeMo at
commit 8cfedd72, modules/conv_asr.py and parts/submodules/jasper.py.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from asr_jax.core.batch import Encoded, Frames
from asr_jax.models.base import Encoder, EncoderOfMels
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.conv_block import Block, BlockNorm, ConvBlock, Policy
from asr_jax.nn.remat import Remat
from asr_jax.nn.time_conv import strided


def published_blocks(copies: int) -> tuple[ConvBlock, ...]:
    """The blocks of QuartzNet 5·`copies` × 5: table 1 of the paper."""
    return (
        ConvBlock(256, 33, stride=2, residual="none"),
        ConvBlock(256, 33, copies=copies, repeat=5),
        ConvBlock(256, 39, copies=copies, repeat=5),
        ConvBlock(512, 51, copies=copies, repeat=5),
        ConvBlock(512, 63, copies=copies, repeat=5),
        ConvBlock(512, 75, copies=copies, repeat=5),
        ConvBlock(512, 87, dilation=2, residual="none"),
        ConvBlock(1024, 1, separable=False, residual="none"),
    )


@dataclass(frozen=True)
class QuartzNet(EncoderOfMels):
    """Blocks, and what changes all of them at once; the defaults are QuartzNet 15x5."""

    num_mels: int = 64
    """Mel bins of the input."""
    blocks: tuple[ConvBlock, ...] = published_blocks(3)
    """The blocks from first to last."""
    copies: int | None = None
    """How often each block with a residual comes, instead of its own `copies`."""
    repeat: int | None = None
    """Layers of each block with a residual, instead of its own `repeat`."""
    dropout: float | None = None
    """Dropout of all blocks, instead of their own."""
    width_factor: float = 1.0
    """Every block's width times this, to a multiple of 8 where it is not 1."""
    kernel_factor: float = 1.0
    """Every block's kernel size times this, down to a whole number, and up to an odd one."""
    activation: ActivationName = "relu"
    """After every norm but the last of a block's layers, which what is added follows first."""
    norm: BlockNorm = "batch"
    """What is normalised together, and whether padding counts."""
    norm_groups: int = 1
    """Groups of channels of the norm "group"."""
    mask_padding: bool = True
    """Set frames beyond a row's length to 0 before every convolution: an utterance then gives the same output alone as
    in a padded batch. Without it, padding enters as it does in the peers' code without masks; which lengths
    squeeze-and-excitation then goes by is unlike NeMo's, which does not divide them by strides."""
    remat: Remat = "elementwise"
    """What of a block's layers, but the first, is computed again in the backward pass instead of being kept: of the
    policies of `nn.remat`, each of which takes less memory than the one before it, none, elementwise, products and
    layers. elementwise is the fastest, too."""
    taps: tuple[str, ...] = ()
    """Inner outputs to give to heads: "block_0", "block_1", ..., counted with their copies."""

    def __post_init__(self) -> None:
        checks = {
            f"num_mels is {self.num_mels}, expected at least 1": self.num_mels > 0,
            "blocks are none, expected at least one": len(self.blocks) > 0,
            f"width_factor is {self.width_factor}, expected more than 0": self.width_factor > 0,
            f"kernel_factor is {self.kernel_factor}, expected more than 0": self.kernel_factor > 0,
        }
        problems = [problem for problem, good in checks.items() if not good]
        if problems:
            raise ValueError("; ".join(problems))
        blocks = self.every_block()  # raises where a factor makes an impossible one
        known = [f"block_{number}" for number in range(len(blocks))]
        if not set(self.taps) <= set(known):
            problems.append(f"taps are {self.taps}, expected some of {known[0]} to {known[-1]}")
        width = self.num_mels
        for number, block in enumerate(blocks):
            ins = (width, block.width) if block.repeat > 1 else (width,)
            for name in ("groups", "heads"):
                if (divisor := getattr(block, name)) and any(channels % divisor for channels in ins):
                    problems.append(f"block_{number} has {name} {divisor}, expected a divisor of its channels, {ins}")
            width = block.width
        widths = sorted({block.width for block in blocks})
        if self.norm.startswith("group") and (self.norm_groups < 1 or any(w % self.norm_groups for w in widths)):
            problems.append(f"norm_groups are {self.norm_groups}, expected a divisor of every width, {widths}")
        if self.norm_groups != 1 and not self.norm.startswith("group"):
            problems.append(f"norm_groups are {self.norm_groups}, expected 1 with the norm {self.norm}")
        if problems:
            raise ValueError("; ".join(problems))

    @classmethod
    def tiny(cls, **changes: Any) -> "QuartzNet":
        """3x5, not of the paper: 0.9 M parameters, for two CPU cores and a few hours of speech."""
        blocks = (
            ConvBlock(128, 11, stride=2, residual="none"),
            ConvBlock(128, 11, repeat=5),
            ConvBlock(192, 15, repeat=5),
            ConvBlock(256, 19, repeat=5),
            ConvBlock(256, 23, dilation=2, residual="none"),
            ConvBlock(384, 1, separable=False, residual="none"),
        )
        return cls(**{"blocks": blocks, **changes})

    @classmethod
    def of_5x5(cls, **changes: Any) -> "QuartzNet":
        """QuartzNet 5x5 of the paper: 6.7 M parameters with a CTC head of 29 labels."""
        return cls(**{"blocks": published_blocks(1), **changes})

    @classmethod
    def of_10x5(cls, **changes: Any) -> "QuartzNet":
        """QuartzNet 10x5 of the paper: 12.8 M parameters with a CTC head of 29 labels."""
        return cls(**{"blocks": published_blocks(2), **changes})

    @classmethod
    def of_15x5(cls, **changes: Any) -> "QuartzNet":
        """QuartzNet 15x5 of the paper: 18.9 M parameters with a CTC head of 29 labels."""
        return cls(**changes)

    def depths(self, path: str) -> tuple[int, ...]:
        """The number of the block."""
        found = re.match(r"block_(\d+)/", path)
        assert found, f"{path} is no parameter of this encoder"
        return (int(found[1]),)

    def num_depths(self) -> int:
        return len(self.every_block())

    def build(self, *, dtype: DTypeLike) -> "QuartzNetEncoder":
        return QuartzNetEncoder(self, dtype)

    def every_block(self) -> list[ConvBlock]:
        """The blocks, each copy by itself, with what changes all of them."""
        blocks = []
        for block in self.blocks:
            if block.residual != "none":
                block = block if self.copies is None else replace(block, copies=self.copies)
                block = block if self.repeat is None else replace(block, repeat=self.repeat)
            if self.dropout is not None:
                block = replace(block, dropout=self.dropout)
            if self.width_factor != 1:
                block = replace(block, width=max(int(block.width * self.width_factor / 8 + 0.5) * 8, 8))
            if self.kernel_factor != 1:
                block = replace(block, kernel_size=odd_size(block.kernel_size, self.kernel_factor))
            blocks += [replace(block, copies=1)] * block.copies
        return blocks

    def policy(self, dtype: DTypeLike) -> Policy:
        """What is the same for all blocks."""
        return Policy(
            activation=self.activation,
            norm=self.norm,
            norm_groups=self.norm_groups,
            mask_padding=self.mask_padding,
            remat=self.remat,
            dtype=dtype,
        )


def odd_size(size: int, factor: float) -> int:
    """A kernel size times a factor, down to a whole number, and up to an odd one, as NVIDIA's code rounds it."""
    return max(int(size * factor), 1) // 2 * 2 + 1


class QuartzNetEncoder(Encoder):
    """[B T num_mels] to [B S width of the last block], S = output_length(T): 50 Hz from 100 Hz by default."""

    settings: QuartzNet
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, policy = self.settings, self.settings.policy(self.dtype)
        settings.check_frames(frames.values)
        x, lengths = frames.values, frames.lengths
        inner, inputs = {}, list[Array]()
        for number, block in enumerate(settings.every_block()):
            name = f"block_{number}"
            inputs = [*inputs, x] if block.residual == "dense" else [x]
            x, lengths = Block(block, policy, name=name)(inputs, lengths, step)
            inputs = inputs if block.residual == "dense" else []
            if name in settings.taps:
                inner[name] = x
        taps = {name: Frames(inner[name], num) for name, num in self.tap_lengths(frames.lengths).items()}
        return Encoded(frames=Frames(x, lengths), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return self._length_after(num_frames, len(self.settings.every_block()))

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return {
            name: self._length_after(num_frames, 1 + int(name.removeprefix("block_"))) for name in self.settings.taps
        }

    def _length_after(self, num_frames: Any, num_blocks: int) -> Any:
        return strided(num_frames, math.prod(block.total_stride for block in self.settings.every_block()[:num_blocks]))
