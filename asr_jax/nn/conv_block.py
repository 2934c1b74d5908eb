"""Blocks of convolutions over time, which QuartzNet, Jasper and Citrinet are made of."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.nn.linear import Linear, per_channel, uniform
from asr_jax.nn.normalization import BatchNorm
from asr_jax.nn.remat import Remat, rematerialised
from asr_jax.nn.schedules import Step

BlockNorm = Literal[
    "batch", "layer", "instance", "group", "batch_padded", "layer_padded", "instance_padded", "group_padded"
]
"""What is brought to mean 0 and variance 1 together. batch: each channel over the batch; layer: all of an utterance;
instance: each channel of an utterance; group: each group of channels of an utterance. All over the valid frames, and
those named padded over all frames of the padded batch, as PyTorch's trainers have it."""
Residual = Literal["none", "add", "max", "dense"]
"""What joins a block's layers. none: nothing; add: the block's input, projected, is added; max: the greater of both is
taken; dense: inputs of the dense blocks before are added as well, each by a projection of its own."""
ActivationName = Literal["relu", "clipped_relu", "hardtanh", "selu", "silu", "gelu", "identity"]
"""clipped_relu is relu up to 20, hardtanh the identity from -1 to 1."""

BATCH_EPS, GROUP_EPS = 1e-3, 1e-5
MOMENTUM = 0.1
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "clipped_relu": lambda x: jnp.clip(x, 0, 20),
    "hardtanh": lambda x: jnp.clip(x, -1, 1),
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class ConvBlock:
    """One block, or several alike that follow each other: layers of a convolution, a norm and an activation, and beside
    them a projection of the block's input."""

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
    remat: Remat = "none"
    dtype: DTypeLike = jnp.float32

    def activate(self, x: Array) -> Array:
        return ACTIVATIONS[self.activation](x)

    def masked(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        return masked(x, lengths) if self.mask_padding else x

    def normaliser(self, width: int, *, name: str) -> nn.Module:
        """A module that is called as `BatchNorm` is."""
        kind, _, padded = self.norm.partition("_")
        if kind == "batch":
            return BatchNorm(MOMENTUM, BATCH_EPS, bool(padded), name=name)
        groups = {"layer": 1, "instance": width, "group": self.norm_groups}[kind]
        return GroupNorm(groups, bool(padded), name=name)


Given = tuple[Float[Array, "B T _"], Int[Array, " B"]]
"""Frames and their lengths."""
Kept = tuple[Float[Array, "B S _"], Int[Array, " B"]]
"""Those that a stride keeps."""


class Block(nn.Module):
    """One block: [B T D] to [B S width], S being T over its stride, rounded up."""

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
            y = SqueezeExcite(block, policy, name="squeeze")(y, lengths, step)
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
        if block.separable:
            x = policy.masked(DepthwiseConv(block, self.stride, name="depthwise")(x), lengths)
            x = Pointwise(block.width, block.groups, policy.dtype, name="pointwise")(x)
        else:
            x = TimeConv(block, self.stride, policy.dtype, name="conv")(x)
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


class DepthwiseConv(nn.Module):
    """A filter over time for each channel, or for every `heads`-th."""

    block: ConvBlock
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S D"]:
        block, width = self.block, x.shape[-1]
        filters, taps = block.heads or width, block.kernel_size
        kernel = self.param("kernel", uniform(xavier(taps, taps * filters)), (taps, filters))
        if block.heads:
            kernel = jnp.tile(kernel, (1, width // filters))
        return depthwise_conv(x, kernel, padding=block.padding, stride=self.stride, dilation=block.dilation)


class Pointwise(nn.Module):
    """A projection of each frame, of groups of channels apart from each other."""

    features: int
    groups: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T {self.features}"]:
        ins, outs, groups = x.shape[-1] // self.groups, self.features, self.groups
        kernel = self.param("kernel", uniform(xavier(ins, outs)), (ins, outs)).astype(self.dtype)
        if groups == 1:
            return x @ kernel
        x = x.reshape(*x.shape[:2], groups, ins)
        y = jnp.einsum("btgd,dge->btge", x, kernel.reshape(ins, groups, outs // groups))
        return y.reshape(*x.shape[:2], outs)


class TimeConv(nn.Module):
    """A convolution over time and channels."""

    block: ConvBlock
    stride: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S E"]:
        block, taps, ins = self.block, self.block.kernel_size, x.shape[-1] // self.block.groups
        bound = xavier(taps * ins, taps * block.width)
        kernel = self.param("kernel", uniform(bound), (taps, ins, block.width)).astype(self.dtype)
        if taps == block.groups == 1:
            return x[:, :: self.stride] @ kernel[0]
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(self.stride,),
            padding=(block.padding,),
            rhs_dilation=(block.dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=block.groups,
        )


class SqueezeExcite(nn.Module):
    """Scales each channel by what two small layers make of the mean over the utterance's frames; in float32.

    Source: Hu et al. 2018 (arXiv:1709.01507); `SqueezeExcite` in NeMo's parts/submodules/jasper.py. Differs from: with
    `squeeze_frames`, the frames looked at while training lie within each utterance; there, anywhere in the padded row.
    """

    block: ConvBlock
    policy: Policy

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step) -> Float[Array, "B T D"]:
        width, narrow, frames = x.shape[-1], x.shape[-1] // self.block.squeeze, self.block.squeeze_frames
        wide = masked(x.astype(jnp.float32), lengths)
        seen = length_mask(lengths, x.shape[1])
        if 0 < frames < x.shape[1] and step is not None:
            room = jnp.maximum(lengths - frames, 0)
            start = jnp.floor(jax.random.uniform(self.make_rng("dropout")) * room).astype(jnp.int32)
            seen &= ~length_mask(start, x.shape[1]) & length_mask(start + frames, x.shape[1])
        num = jnp.maximum(jnp.sum(seen, axis=1, keepdims=True), 1).astype(jnp.float32)
        mean = jnp.sum(jnp.where(seen[..., None], wide, 0), axis=1) / num
        scale = xavier(width, narrow) * math.sqrt(width)
        hidden = self.policy.activate(Linear(narrow, scale, use_bias=False, name="in")(mean))
        scale = xavier(narrow, width) * math.sqrt(narrow)
        gate = jax.nn.sigmoid(Linear(width, scale, use_bias=False, name="out")(hidden))
        return (wide * gate[:, None]).astype(x.dtype)


class GroupNorm(nn.Module):
    """All frames of an utterance and all channels of a group to mean 0 and variance 1; then a gain and a bias for each
    channel. With one group it is a layer norm over time as well, with a group per channel an instance norm.

    Padding has no influence, unless the norm `counts_padding`. Source: Wu and He 2018 (arXiv:1803.08494);
    torch.nn.GroupNorm, which counts padding.
    """

    num_groups: int
    counts_padding: bool = False
    eps: float = GROUP_EPS

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, use_running: bool = True
    ) -> Float[Array, "B T D"]:
        """`use_running`: of no use, as there are no running statistics."""
        rows, frames, width = x.shape
        gain = self.param("gain", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        if self.counts_padding:
            lengths = jnp.full_like(lengths, frames)
        mask = length_mask(lengths, frames)[:, :, None, None]
        grouped = x.astype(jnp.float32).reshape(rows, frames, self.num_groups, -1)
        num = jnp.maximum(lengths * (width // self.num_groups), 1).astype(jnp.float32)[:, None, None, None]
        deviation = grouped - jnp.sum(jnp.where(mask, grouped, 0), (1, 3), keepdims=True) / num
        variance = jnp.sum(jnp.where(mask, deviation**2, 0), (1, 3), keepdims=True) / num
        y = (deviation * jax.lax.rsqrt(variance + self.eps)).reshape(x.shape)
        return (y * per_channel(gain, y) + per_channel(bias, y)).astype(x.dtype)


def masked(x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
    """0 beyond each row's length."""
    return jnp.where(length_mask(lengths, x.shape[1])[..., None], x, 0)


def shuffled(x: Float[Array, "B T D"], groups: int) -> Float[Array, "B T D"]:
    """The first channel of each group, then the second of each, and so on."""
    if groups == 1:
        return x
    return x.reshape(*x.shape[:2], groups, -1).swapaxes(-1, -2).reshape(x.shape)


def strided(num_frames: Any, stride: int) -> Any:
    """Every `stride`-th of so many frames, from the first; for ints and arrays."""
    return -(-num_frames // stride)


def xavier(fan_in: int, fan_out: int) -> float:
    """The bound of weights drawn evenly. Source: Glorot and Bengio 2010, equation 16."""
    return math.sqrt(6 / (fan_in + fan_out))
