"""QuartzNet: blocks of time-channel-separable convolutions. Jasper and Citrinet are settings of the same blocks.

Source: Kriman et al. 2020, "QuartzNet" (arXiv:1910.10261); Li et al. 2019, "Jasper" (arXiv:1904.03288); Majumdar et al.
2021, "Citrinet" (arXiv:2104.01721); NVIDIA's DeepLearningExamples at commit 729963dd, quartznet/model.py; NeMo at
commit 8cfedd72, modules/conv_asr.py and parts/submodules/jasper.py.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.settings import PositiveFloat, PositiveInt, settings
from asr_jax.models.encoder import Encoder, EncoderOfMels, LayeredEncoder
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.quartznet.block import Block, BlockNorm, BlockPolicy, ConvBlock
from asr_jax.nn.quartznet.time_conv import strided


def published_blocks(copies: int) -> tuple[ConvBlock, ...]:
    """Blocks of QuartzNet 5·`copies` × 5. Source: table 1 of the QuartzNet paper."""
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


@settings
class QuartzNet(LayeredEncoder, EncoderOfMels):
    """Settings of QuartzNet: blocks, and overrides for all of them. The defaults are QuartzNet 15x5."""

    num_mels = 64
    blocks: tuple[ConvBlock, ...] = published_blocks(3)
    """Settings of the blocks, first to last."""
    copies: int | None = None
    """Number of copies of each block with a residual. None: each block's own `copies`."""
    repeat: int | None = None
    """Number of layers of each block with a residual. None: each block's own `repeat`."""
    dropout: float | None = None
    """Dropout rate of all blocks. None: each block's own."""
    width_factor: PositiveFloat = 1.0
    """Factor of the width of every block. If it is not 1, widths are rounded to multiples of 8."""
    kernel_factor: PositiveFloat = 1.0
    """Factor of the kernel size of every block. The product is rounded down to an integer, then up to an odd one."""
    activation: ActivationName = "relu"
    """Activation after every norm. The last activation of a block is applied after the residual."""
    norm: BlockNorm = "batch"
    """Set of values that each norm normalises; the suffix _padded includes padding."""
    norm_groups: PositiveInt = 1
    """Number of groups of channels of the norm "group"."""

    def tap_names(self) -> tuple[str, ...]:
        return tuple(f"block_{number}" for number in range(len(self.every_block())))

    def problems(self) -> Iterator[str]:
        if not self.blocks:
            yield "blocks is empty: expected at least one block"
            return
        yield from super().problems()
        blocks, width = self.every_block(), self.num_mels
        for number, block in enumerate(blocks):
            ins = (width, block.width) if block.repeat > 1 else (width,)
            for name in ("groups", "heads"):
                if (divisor := getattr(block, name)) and any(channels % divisor for channels in ins):
                    yield f"block_{number} has {name} {divisor}: expected a divisor of its channels, {ins}"
            width = block.width
        widths = sorted({block.width for block in blocks})
        if self.norm.startswith("group") and any(w % self.norm_groups for w in widths):
            yield f"norm_groups is {self.norm_groups}: expected a divisor of every width, {widths}"
        if self.norm_groups != 1 and not self.norm.startswith("group"):
            yield f"norm_groups is {self.norm_groups}: expected 1 with the norm {self.norm}"

    @classmethod
    def tiny(cls, **changes: Any) -> "QuartzNet":
        """QuartzNet 3x5 with 0.9 M parameters, for two CPU cores and a few hours of speech; not published."""
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
        """Depth: the number of the block."""
        found = re.match(r"block_(\d+)/", path)
        assert found, f"{path} is not a parameter of this encoder"
        return (int(found[1]),)

    def num_depths(self) -> int:
        return len(self.every_block())

    def build(self, *, dtype: DTypeLike) -> "QuartzNetEncoder":
        return QuartzNetEncoder(self, dtype)

    def every_block(self) -> list[ConvBlock]:
        """Returns the settings of all blocks, with copies as separate blocks and with the overrides applied."""
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

    def policy(self, dtype: DTypeLike) -> BlockPolicy:
        """Settings that all blocks share."""
        return BlockPolicy(
            activation=self.activation,
            norm=self.norm,
            norm_groups=self.norm_groups,
            mask_padding=self.mask_padding,
            remat=self.remat,
            dtype=dtype,
        )


def odd_size(size: int, factor: float) -> int:
    """Kernel size times `factor`, rounded down to an integer and then up to an odd one, as in NVIDIA's code."""
    return max(int(size * factor), 1) // 2 * 2 + 1


class QuartzNetEncoder(Encoder):
    """QuartzNet encoder, [B T num_mels] to [B S width of the last block] with S = output_length(T).

    By default it halves the frame rate, such as from 100 Hz to 50 Hz.
    """

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
