"""QuartzNet: blocks of time-channel-separable convolutions. Jasper and Citrinet are settings of the same blocks.

Source: Kriman et al. 2020, "QuartzNet" (arXiv:1910.10261); Li et al. 2019, "Jasper" (arXiv:1904.03288); Majumdar et al.
2021, "Citrinet" (arXiv:2104.01721); NVIDIA's DeepLearningExamples at commit 729963dd, quartznet/model.py; NeMo at
commit 8cfedd72, modules/conv_asr.py and parts/submodules/jasper.py.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.settings import PositiveFloat, PositiveInt, settings
from asr_jax.kernels.masking.api import mask_time
from asr_jax.models.encoder import Encoder, EncoderOfMels, LayeredEncoder
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.layer_stack import layer_stack
from asr_jax.nn.normalization import BatchNorm, GroupNorm
from asr_jax.nn.quartznet.block import BlockNorm, ConvBlock
from asr_jax.nn.quartznet.time_conv import (
    DepthwiseTimeConv,
    Pointwise,
    SqueezeExcite,
    TimeConv,
    TimeWindow,
    every,
    shuffled,
    strided,
)
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

EPS, MOMENTUM = 1e-3, 0.1
"""Epsilon and momentum of batch norms."""


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

    def activate(self, x: Array) -> Array:
        """Applies the activation."""
        return ACTIVATIONS[self.activation](x)

    def masked(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        """Sets frames beyond each row's length to 0, if padding is masked."""
        return mask_time(x, lengths) if self.mask_padding else x

    def normaliser(self, width: int, *, name: str) -> nn.Module:
        """Returns a norm module with the call signature of `BatchNorm`."""
        kind, _, padded = self.norm.partition("_")
        if kind == "batch":
            return BatchNorm(MOMENTUM, EPS, bool(padded), name=name)
        groups = {"layer": 1, "instance": width, "group": self.norm_groups}[kind]
        return GroupNorm(groups, bool(padded), name=name)


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
        settings = self.settings
        settings.check_frames(frames.values)
        x, lengths = frames.values, frames.lengths
        inner, inputs = {}, list[Array]()
        for number, block in enumerate(settings.every_block()):
            name = f"block_{number}"
            inputs = [*inputs, x] if block.residual == "dense" else [x]
            x, lengths = Block(block, settings, self.dtype, name=name)(inputs, lengths, step)
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


InputFrames = tuple[Float[Array, "B T _"], Int[Array, " B"]]
"""Input frames and their lengths."""
OutputFrames = tuple[Float[Array, "B S _"], Int[Array, " B"]]
"""Output frames, after the stride, and their lengths."""


class Block(nn.Module):
    """One block: [B T D] to [B S width], with S = ⌈T / stride⌉.

    Source: `JasperBlock` in NVIDIA's DeepLearningExamples (QuartzNet, quartznet/model.py) and NeMo
    (parts/submodules/jasper.py). Differs from: the residual has the stride of the layers, as NeMo's has only with
    `stride_add`; a block after dense blocks that is not dense itself adds its own input, while the sources add the
    oldest one.
    """

    block: ConvBlock
    settings: QuartzNet
    dtype: DTypeLike

    @nn.compact
    def __call__(self, inputs: Sequence[Float[Array, "B T _"]], given: Int[Array, " B"], step: Step) -> OutputFrames:
        """Applies the block.

        Args:
            inputs: Sources of the residual, with the input of the block last. A dense block also has the inputs of the
                directly preceding dense blocks.
            given: Length of each row of the inputs in frames.
        """
        block, settings, strides = self.block, self.settings, self.block.strides
        common = (block, settings, self.dtype)
        carry, _ = ConvLayer(*common, strides[0], activates=False, name="first")((inputs[-1], given), step)
        if num_alike := strides[1:].count(1):
            layers = layer_stack(ConvLayer, num_alike, settings.remat)
            carry, _ = layers(*common, name="layers")(carry, step)
        for number in range(1 + num_alike, len(strides)):
            carry, _ = ConvLayer(*common, strides[number], name=f"layer_{number}")(carry, step)
        y, lengths = carry
        if block.squeeze:
            y = SqueezeExcite(block.squeeze, block.squeeze_frames, settings.activate, name="squeeze")(y, lengths, step)
        for number, source in enumerate(inputs if block.residual != "none" else ()):
            side = Projection(*common, name=f"residual_{number}")(source, given, lengths, step)
            y = jnp.maximum(y, side) if block.residual == "max" else y + side
        y = Dropout(block.dropout)(settings.activate(y), step=step)
        return y, lengths


class ConvLayer(nn.Module):
    """One layer of a block: activation and dropout of the previous layer's output, then convolution and norm."""

    block: ConvBlock
    settings: QuartzNet
    dtype: DTypeLike
    stride: PositiveInt = 1
    activates: bool = True

    @nn.compact
    def __call__(self, carry: InputFrames, step: Step) -> tuple[OutputFrames, None]:
        block, settings, (x, lengths) = self.block, self.settings, carry
        if self.activates:
            x = Dropout(block.dropout)(settings.activate(x), step=step)
        x = settings.masked(x.astype(self.dtype), lengths)
        lengths = strided(lengths, self.stride)
        window = TimeWindow(block.kernel_size, self.stride, block.dilation, block.padding)
        if block.separable:
            x = settings.masked(DepthwiseTimeConv(window, block.heads, name="depthwise")(x), lengths)
            x = Pointwise(block.width, block.groups, self.dtype, name="pointwise")(x)
        else:
            x = TimeConv(block.width, window, block.groups, self.dtype, name="conv")(x)
        x = settings.normaliser(block.width, name="norm")(x, lengths, use_running=step is None)
        return (shuffled(x, block.groups), lengths), None


class Projection(nn.Module):
    """Residual branch of a block: a projection of every `total_stride`-th frame, and a norm."""

    block: ConvBlock
    settings: QuartzNet
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T _"], given: Int[Array, " B"], lengths: Int[Array, " B"], step: Step
    ) -> Float[Array, "B S E"]:
        """Projects `x` to the width and the frames of the block's output."""
        block, settings = self.block, self.settings
        x = every(settings.masked(x.astype(self.dtype), given), block.total_stride)
        x = Pointwise(block.width, 1, self.dtype, name="pointwise")(x)
        return settings.normaliser(block.width, name="norm")(x, lengths, use_running=step is None)
