"""Blocks of convolutions over time, as in QuartzNet, Jasper and Citrinet."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.settings import NonNegativeInt, PositiveInt, ShareBelow1, settings
from asr_jax.kernels.masking.api import mask_time
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.layer_stack import layer_stack
from asr_jax.nn.normalization import BatchNorm, GroupNorm
from asr_jax.nn.quartznet.time_conv import (
    DepthwiseTimeConv,
    Pointwise,
    SqueezeExcite,
    TimeConv,
    TimeWindow,
    shuffled,
    strided,
)
from asr_jax.nn.remat import Remat
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

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

EPS, MOMENTUM = 1e-3, 0.1
"""Epsilon and momentum of batch norms."""


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


@dataclass(frozen=True)
class BlockPolicy:
    """Settings that all blocks of a model share."""

    activation: ActivationName = "relu"
    norm: BlockNorm = "batch"
    norm_groups: int = 1
    """Number of groups of the norm "group"."""
    mask_padding: bool = True
    """Whether frames beyond a row's length are set to 0 before every convolution."""
    remat: Remat = "elementwise"
    dtype: DTypeLike = jnp.float32

    def activate(self, x: Array) -> Array:
        return ACTIVATIONS[self.activation](x)

    def masked(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        return mask_time(x, lengths) if self.mask_padding else x

    def normaliser(self, width: int, *, name: str) -> nn.Module:
        """Returns a norm module with the call signature of `BatchNorm`."""
        kind, _, padded = self.norm.partition("_")
        if kind == "batch":
            return BatchNorm(MOMENTUM, EPS, bool(padded), name=name)
        groups = {"layer": 1, "instance": width, "group": self.norm_groups}[kind]
        return GroupNorm(groups, bool(padded), name=name)


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
    policy: BlockPolicy

    @nn.compact
    def __call__(self, inputs: Sequence[Float[Array, "B T _"]], given: Int[Array, " B"], step: Step) -> OutputFrames:
        """Applies the block.

        Args:
            inputs: Sources of the residual, with the input of the block last. A dense block also has the inputs of the
                directly preceding dense blocks.
            given: Length of each row of the inputs in frames.

        Returns:
            Output frames and their lengths.
        """
        block, policy, strides = self.block, self.policy, self.block.strides
        carry, _ = ConvLayer(block, policy, strides[0], activates=False, name="first")((inputs[-1], given), step)
        if num_alike := strides[1:].count(1):
            layers = layer_stack(ConvLayer, num_alike, policy.remat)
            carry, _ = layers(block, policy, name="layers")(carry, step)
        for number in range(1 + num_alike, len(strides)):
            carry, _ = ConvLayer(block, policy, strides[number], name=f"layer_{number}")(carry, step)
        y, lengths = carry
        if block.squeeze:
            y = SqueezeExcite(block.squeeze, block.squeeze_frames, policy.activate, name="squeeze")(y, lengths, step)
        for number, source in enumerate(inputs if block.residual != "none" else ()):
            side = Projection(block, policy, name=f"residual_{number}")(source, given, lengths, step)
            y = jnp.maximum(y, side) if block.residual == "max" else y + side
        y = Dropout(block.dropout)(policy.activate(y), step=step)
        return y, lengths


class ConvLayer(nn.Module):
    """One layer of a block: activation and dropout of the previous layer's output, then convolution and norm."""

    block: ConvBlock
    policy: BlockPolicy
    stride: PositiveInt = 1
    activates: bool = True

    @nn.compact
    def __call__(self, carry: InputFrames, step: Step) -> tuple[OutputFrames, None]:
        block, policy, (x, lengths) = self.block, self.policy, carry
        if self.activates:
            x = Dropout(block.dropout)(policy.activate(x), step=step)
        x = policy.masked(x.astype(policy.dtype), lengths)
        lengths = strided(lengths, self.stride)
        window = TimeWindow(block.kernel_size, self.stride, block.dilation, block.padding)
        if block.separable:
            x = policy.masked(DepthwiseTimeConv(window, block.heads, name="depthwise")(x), lengths)
            x = Pointwise(block.width, block.groups, policy.dtype, name="pointwise")(x)
        else:
            x = TimeConv(block.width, window, block.groups, policy.dtype, name="conv")(x)
        x = policy.normaliser(block.width, name="norm")(x, lengths, use_running=step is None)
        return (shuffled(x, block.groups), lengths), None


class Projection(nn.Module):
    """Residual branch of a block: a projection of every `total_stride`-th frame, and a norm."""

    block: ConvBlock
    policy: BlockPolicy

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T _"], given: Int[Array, " B"], lengths: Int[Array, " B"], step: Step
    ) -> Float[Array, "B S E"]:
        """Projects `x` to the width and the frames of the block's output.

        Args:
            x: Source of the residual.
            given: Length of each row of `x` in frames.
            lengths: Length of each row of the output in frames.

        Returns:
            Residual of the block.
        """
        block, policy = self.block, self.policy
        x = policy.masked(x.astype(policy.dtype), given)[:, :: block.total_stride]
        x = Pointwise(block.width, 1, policy.dtype, name="pointwise")(x)
        return policy.normaliser(block.width, name="norm")(x, lengths, use_running=step is None)
