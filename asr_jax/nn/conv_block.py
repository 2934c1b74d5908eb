"""Blocks of convolutions over time, which QuartzNet, Jasper and Citrinet are made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import zero_padding
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.normalization import BatchNorm, GroupNorm
from asr_jax.nn.remat import Remat, rematerialised
from asr_jax.nn.schedules import Step
from asr_jax.nn.time_conv import (
    DepthwiseTimeConv,
    Pointwise,
    SqueezeExcite,
    TimeConv,
    TimeWindow,
    shuffled,
    strided,
)

BlockNorm = Literal[
    "batch", "layer", "instance", "group", "batch_padded", "layer_padded", "instance_padded", "group_padded"
]
"""What is brought to mean 0 and variance 1 together. batch: each channel over the batch; layer: all of an utterance;
instance: each channel of an utterance; group: each group of channels of an utterance. All over the valid frames, and
those named padded over all frames of the padded batch, as PyTorch's trainers have it."""
Residual = Literal["none", "add", "max", "dense"]
"""What joins a block's layers. none: nothing; add: the block's input, projected, is added; max: the greater of both is
taken; dense: inputs of the dense blocks before are added as well, each by a projection of its own."""

EPS, MOMENTUM = 1e-3, 0.1
"""Of batch norms."""


@dataclass(frozen=True)
class ConvBlock:
    """One block, or several alike that follow each other: layers of a convolution, a norm and an activation, and beside
    them a projection of the block's input.
    """

    width: int
    """Channels that come out."""
    kernel_size: int
    """Taps of the convolutions over time, odd."""
    copies: int = 1
    """Blocks like this, one after the other."""
    repeat: int = 1
    """Layers of a block."""
    stride: int = 1
    """Frames that each layer goes on by."""
    stride_last: bool = False
    """Only the last layer has the stride."""
    dilation: int = 1
    """Frames between taps."""
    separable: bool = True
    """A depthwise convolution over time and a projection, instead of one convolution over both."""
    residual: Residual = "add"
    """What joins the block's layers."""
    dropout: float = 0.0
    """After each activation."""
    groups: int = 1
    """Groups of channels that projections (of what is not separable: convolutions) keep apart; above 1, channels of
    all groups are shuffled after each norm."""
    heads: int = 0
    """Filters that the channels of a depthwise convolution share in turn; 0: one for each channel."""
    squeeze: int = 0
    """Squeeze-and-excitation at the end of the layers, through a width of this part of the channels; 0: none."""
    squeeze_frames: int = 0
    """Frames that it looks at while training, at a random place; 0, and always when evaluating: all."""
    future_frames: int | None = None
    """Frames ahead that each convolution sees; None: as many as behind."""

    def __post_init__(self) -> None:
        checks = {
            f"kernel_size is {self.kernel_size}, expected an odd number": self.kernel_size % 2 == 1,
            f"dropout is {self.dropout}, expected at least 0 and less than 1": 0 <= self.dropout < 1,
            f"stride {self.stride} and dilation {self.dilation}: expected one of them to be 1": self.stride == 1
            or self.dilation == 1,
            f"residual is dense and the stride {self.stride}, expected 1": self.residual != "dense" or self.stride == 1,
            f"groups are {self.groups}, expected a divisor of the width, {self.width}": self.groups > 0
            and self.width % self.groups == 0,
            f"heads are {self.heads} without separable, expected 0": self.separable or not self.heads,
            f"squeeze is {self.squeeze}, expected at most the width, {self.width}": self.squeeze <= self.width,
            f"future_frames is {self.future_frames}, expected None or 0 to kernel_size - 1, with a dilation of 1": (
                self.future_frames is None or (0 <= self.future_frames < self.kernel_size and self.dilation == 1)
            ),
        }
        problems = [
            f"{name} is {getattr(self, name)}, expected at least {least}"
            for least, names in (
                (1, ("width", "kernel_size", "copies", "repeat", "stride", "dilation")),
                (0, ("heads", "squeeze", "squeeze_frames")),
            )
            for name in names
            if getattr(self, name) < least
        ]
        problems += [problem for problem, good in checks.items() if not good]
        if problems:
            raise ValueError(f"block of width {self.width}: " + "; ".join(problems))

    @property
    def strides(self) -> tuple[int, ...]:
        """Of each layer."""
        before = 1 if self.stride_last else self.stride
        return (before,) * (self.repeat - 1) + (self.stride,)

    @property
    def total_stride(self) -> int:
        return math.prod(self.strides)

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after the frames, so that with a stride of 1 as many come out."""
        if self.future_frames is not None:
            return self.kernel_size - 1 - self.future_frames, self.future_frames
        side = self.kernel_size // 2 * self.dilation
        return side, side


@dataclass(frozen=True)
class Policy:
    """What is the same for all blocks of a model."""

    activation: ActivationName = "relu"
    norm: BlockNorm = "batch"
    norm_groups: int = 1
    """Of the norm "group"."""
    mask_padding: bool = True
    """Set frames beyond a row's length to 0 before every convolution."""
    remat: Remat = "elementwise"
    dtype: DTypeLike = jnp.float32

    def activate(self, x: Array) -> Array:
        return ACTIVATIONS[self.activation](x)

    def masked(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        return zero_padding(x, lengths) if self.mask_padding else x

    def normaliser(self, width: int, *, name: str) -> nn.Module:
        """A module that is called as `BatchNorm` is."""
        kind, _, padded = self.norm.partition("_")
        if kind == "batch":
            return BatchNorm(MOMENTUM, EPS, bool(padded), name=name)
        groups = {"layer": 1, "instance": width, "group": self.norm_groups}[kind]
        return GroupNorm(groups, bool(padded), name=name)


Given = tuple[Float[Array, "B T _"], Int[Array, " B"]]
"""Frames and their lengths."""
Kept = tuple[Float[Array, "B S _"], Int[Array, " B"]]
"""Those that a stride keeps."""


class Block(nn.Module):
    """One block: [B T D] to [B S width], S being T over its stride, rounded up.

    Source: `JasperBlock` in NVIDIA's DeepLearningExamples (QuartzNet, quartznet/model.py) and NeMo
    (parts/submodules/jasper.py). Differs from: what is added goes on by the layers' stride, as NeMo has it with
    `stride_add` alone; a block that follows dense ones, and is none, adds its own input, where theirs is the oldest.
    """

    block: ConvBlock
    policy: Policy

    @nn.compact
    def __call__(self, inputs: Sequence[Float[Array, "B T _"]], given: Int[Array, " B"], step: Step) -> Kept:
        """`inputs`: of the dense blocks just before, where this is one, and its own; `given`: their lengths."""
        block, policy, strides = self.block, self.policy, self.block.strides
        carry, _ = ConvLayer(block, policy, strides[0], activates=False, name="first")((inputs[-1], given), step)
        if num_alike := strides[1:].count(1):
            layers = nn.scan(
                rematerialised(ConvLayer, policy.remat),
                variable_axes={"params": 0, "batch_stats": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=num_alike,
                check_constancy_invariants=False,  # would trace the layer once more
            )
            carry, _ = layers(block, policy, name="layers")(carry, step)
        for number in range(1 + num_alike, len(strides)):
            carry, _ = ConvLayer(block, policy, strides[number], name=f"layer_{number}")(carry, step)
        y, lengths = carry
        if block.squeeze:
            y = SqueezeExcite(block.squeeze, block.squeeze_frames, policy.activate, name="squeeze")(y, lengths, step)
        for number, source in enumerate(inputs if block.residual != "none" else ()):
            side = Projection(block, policy, name=f"residual_{number}")(source, given, lengths, step)
            y = jnp.maximum(y, side) if block.residual == "max" else y + side
        y = nn.Dropout(block.dropout)(policy.activate(y), deterministic=step is None)
        return y, lengths


class ConvLayer(nn.Module):
    """Activation (of what the layer before gave) and dropout, then convolution and norm."""

    block: ConvBlock
    policy: Policy
    stride: int = 1
    activates: bool = True

    @nn.compact
    def __call__(self, carry: Given, step: Step) -> tuple[Kept, None]:
        block, policy, (x, lengths) = self.block, self.policy, carry
        if self.activates:
            x = nn.Dropout(block.dropout)(policy.activate(x), deterministic=step is None)
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
    """What is added to a block's layers: a projection of frames, as many as the layers keep, and a norm."""

    block: ConvBlock
    policy: Policy

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T _"], given: Int[Array, " B"], lengths: Int[Array, " B"], step: Step
    ) -> Float[Array, "B S E"]:
        """`given`: lengths of x; `lengths`: of what comes out."""
        block, policy = self.block, self.policy
        x = policy.masked(x.astype(policy.dtype), given)[:, :: block.total_stride]
        x = Pointwise(block.width, 1, policy.dtype, name="pointwise")(x)
        return policy.normaliser(block.width, name="norm")(x, lengths, use_running=step is None)
