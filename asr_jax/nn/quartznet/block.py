"""Settings of blocks of convolutions over time, as in QuartzNet, Jasper and Citrinet."""

import math
from collections.abc import Iterator
from typing import Literal

from asr_jax.core.settings import NonNegativeInt, PositiveInt, ShareBelow1, settings

BlockNorm = Literal[
    "batch", "layer", "instance", "group", "batch_padded", "layer_padded", "instance_padded", "group_padded"
]
"""Set of values that a norm brings to mean 0 and variance 1.

batch: each channel over the batch. layer: all values of an utterance. instance: each channel of an utterance. group:
each group of channels of an utterance. The statistics are over the valid frames, and with the suffix _padded over all
frames of the padded batch, as in PyTorch's trainers.
"""
Residual = Literal["none", "add", "max", "dense"]
"""Residual connection of a block.

none: no residual. add: adds the projected input of the block. max: elementwise maximum with the projected input. dense:
as add, and also adds the inputs of the directly preceding dense blocks, each with a projection of its own.
"""


@settings
class ConvBlock:
    """Settings of a block, or of several equal blocks in sequence.

    A block consists of layers, each with a convolution, a norm and an activation, and of a residual connection.
    """

    width: PositiveInt
    """Output channels."""
    kernel_size: PositiveInt
    """Taps of the convolutions over time. Must be odd."""
    copies: PositiveInt = 1
    """Number of blocks with these settings in sequence."""
    repeat: PositiveInt = 1
    """Number of layers of a block."""
    stride: PositiveInt = 1
    """Stride of each layer in frames."""
    stride_last: bool = False
    """Whether only the last layer has the stride."""
    dilation: PositiveInt = 1
    """Distance between taps in frames."""
    separable: bool = True
    """Whether a depthwise convolution over time and a projection replace a full convolution."""
    residual: Residual = "add"
    """Residual connection of the block: none, add, max or dense."""
    dropout: ShareBelow1 = 0.0
    """Dropout rate after each activation."""
    groups: PositiveInt = 1
    """Groups of channels in the projections, or in the convolutions of layers that are not separable. Above 1, channels
    are shuffled across groups after each norm."""
    heads: NonNegativeInt = 0
    """Number of depthwise filters, which the channels share in turn. 0: one filter per channel."""
    squeeze: NonNegativeInt = 0
    """Reduction factor of squeeze-and-excitation, which follows the last layer. 0: no squeeze-and-excitation."""
    squeeze_frames: NonNegativeInt = 0
    """Frames that squeeze-and-excitation averages over in training, from a random start. 0: all. Evaluation always
    uses all frames."""
    future_frames: NonNegativeInt | None = None
    """Right context of each convolution in frames. None: symmetric."""

    def problems(self) -> Iterator[str]:
        of = f"block of width {self.width}: "
        if self.kernel_size % 2 == 0:
            yield f"{of}kernel_size is {self.kernel_size}: expected an odd number"
        if self.stride > 1 and self.dilation > 1:
            yield f"{of}stride is {self.stride} and dilation is {self.dilation}: expected at least one of them to be 1"
        if self.residual == "dense" and self.stride > 1:
            yield f"{of}stride is {self.stride}: expected 1 with a dense residual"
        if self.width % self.groups:
            yield f"{of}groups is {self.groups}: expected a divisor of width, {self.width}"
        if self.heads and not self.separable:
            yield f"{of}heads is {self.heads}: expected 0 because separable is False"
        if self.squeeze > self.width:
            yield f"{of}squeeze is {self.squeeze}: expected at most width, {self.width}"
        if self.future_frames is not None and (self.future_frames >= self.kernel_size or self.dilation > 1):
            yield (
                f"{of}future_frames is {self.future_frames}: expected None, or 0 to kernel_size - 1 with a dilation of "
                "1"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each layer in frames."""
        before = 1 if self.stride_last else self.stride
        return (before,) * (self.repeat - 1) + (self.stride,)

    @property
    def total_stride(self) -> int:
        return math.prod(self.strides)

    @property
    def padding(self) -> tuple[int, int]:
        """Zero frames before and after the input, which keep the number of frames at a stride of 1."""
        if self.future_frames is not None:
            return self.kernel_size - 1 - self.future_frames, self.future_frames
        side = self.kernel_size // 2 * self.dilation
        return side, side
