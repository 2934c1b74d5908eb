"""Convolutions over time with Xavier initialisation, grouped projections, and squeeze-and-excitation."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask, zero_padding
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.nn.linear import Linear, project, uniform
from asr_jax.nn.remat import saved, weighted
from asr_jax.nn.schedules import Step


class TimeWindow(NamedTuple):
    """Kernel size, stride, dilation and padding of a convolution over time, in frames."""

    kernel_size: int
    stride: int
    dilation: int
    padding: tuple[int, int]
    """Zero frames before and after the input."""


class DepthwiseTimeConv(nn.Module):
    """Depthwise convolution over time."""

    window: TimeWindow
    heads: int = 0
    """Number of filters, which the channels share in turn. 0: one filter per channel."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S D"]:
        window, width = self.window, x.shape[-1]
        filters, taps = self.heads or width, window.kernel_size
        kernel = self.param("kernel", uniform(xavier(taps, taps * filters)), (taps, filters))
        if self.heads:
            kernel = jnp.tile(kernel, (1, width // filters))
        y = depthwise_conv(x, kernel, padding=window.padding, stride=window.stride, dilation=window.dilation)
        return saved(y)


class Pointwise(nn.Module):
    """Grouped projection of each frame."""

    features: int
    groups: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T {self.features}"]:
        ins, outs, groups = x.shape[-1] // self.groups, self.features, self.groups
        kernel = self.param("kernel", uniform(xavier(ins, outs)), (ins, outs)).astype(self.dtype)
        if groups == 1:
            return project(x, kernel)
        x = x.reshape(*x.shape[:2], groups, ins)
        y = jnp.einsum("btgd,dge->btge", x, kernel.reshape(ins, groups, outs // groups))
        return weighted(y.reshape(*x.shape[:2], outs))


class TimeConv(nn.Module):
    """Grouped convolution over time."""

    features: int
    window: TimeWindow
    groups: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S {self.features}"]:
        window, taps, ins = self.window, self.window.kernel_size, x.shape[-1] // self.groups
        bound = xavier(taps * ins, taps * self.features)
        kernel = self.param("kernel", uniform(bound), (taps, ins, self.features)).astype(self.dtype)
        if taps == self.groups == 1:
            return project(every(x, window.stride), kernel[0])
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(window.stride,),
            padding=(window.padding,),
            rhs_dilation=(window.dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=self.groups,
        )
        return weighted(y)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation over time, computed in float32.

    Two linear layers compute a gate for each channel from the mean over the utterance's frames.

    Source: Hu et al. 2018 (arXiv:1709.01507); `SqueezeExcite` in NeMo's parts/submodules/jasper.py. Differs from: with
    `frames`, the averaged frames are within each utterance in training; in NeMo, they are anywhere in the padded row.
    """

    reduction: int
    """Number of channels divided by the width of the first layer."""
    frames: int
    """Frames that training averages over, from a random start. 0: all. Evaluation always averages over all frames."""
    activate: Callable[[Array], Array]

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step) -> Float[Array, "B T D"]:
        width, narrow, frames = x.shape[-1], x.shape[-1] // self.reduction, self.frames
        wide = zero_padding(x.astype(jnp.float32), lengths)
        seen = length_mask(lengths, x.shape[1])
        if step is not None and 0 < frames < x.shape[1]:
            room = jnp.maximum(lengths - frames, 0)
            start = jnp.floor(jax.random.uniform(self.make_rng("dropout")) * room).astype(jnp.int32)
            seen &= ~length_mask(start, x.shape[1]) & length_mask(start + frames, x.shape[1])
        num = jnp.maximum(jnp.sum(seen, axis=1, keepdims=True), 1).astype(jnp.float32)
        mean = jnp.sum(jnp.where(seen[..., None], wide, 0), axis=1) / num
        scale = xavier(width, narrow) * math.sqrt(width)
        hidden = self.activate(Linear(narrow, scale, use_bias=False, name="in")(mean))
        scale = xavier(narrow, width) * math.sqrt(narrow)
        gate = jax.nn.sigmoid(Linear(width, scale, use_bias=False, name="out")(hidden))
        return (wide * gate[:, None]).astype(x.dtype)


def shuffled(x: Float[Array, "B T D"], groups: int) -> Float[Array, "B T D"]:
    """Shuffles channels across groups: the first channel of each group, then the second of each, and so on."""
    if groups == 1:
        return x
    return x.reshape(*x.shape[:2], groups, -1).swapaxes(-1, -2).reshape(x.shape)


def every(x: Float[Array, "B T D"], stride: int) -> Float[Array, "B S D"]:
    """Returns every `stride`-th frame, S = `strided(T, stride)`."""
    return x if stride == 1 else jax.lax.slice_in_dim(x, 0, None, stride, axis=1)


def strided(num_frames: Any, stride: int) -> Any:
    """Number of frames after a stride, ⌈num_frames / stride⌉; for ints and arrays."""
    return -(-num_frames // stride)


def xavier(fan_in: int, fan_out: int) -> float:
    """Bound of Xavier's uniform initialisation. Source: Glorot and Bengio 2010, equation 16."""
    return math.sqrt(6 / (fan_in + fan_out))
