"""Normalisation layers: always computed in float32."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.nn.linear import per_channel
from asr_jax.nn.remat import saved
from asr_jax.nn.stochastic import Regulariser


def layer_norm(eps: float, *, name: str) -> nn.LayerNorm:
    """Over the last axis, in float32. The variance is of deviations from the mean: Flax's own default subtracts
    squares, which cancel where the mean is large.
    """
    return nn.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)


class BiasNorm(nn.Module):
    """x · exp(log_scale) / RMS(x - bias), over the last axis; the result has the type of `x`.

    While training with regularisers, log_scale is kept within ±1.5.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.3; `BiasNorm` in icefall's zipformer/scaling.py.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "*rest D"], *, regularise: Regulariser) -> Float[Array, "*rest D"]:
        bias = self.param("bias", nn.initializers.normal(1e-4), (x.shape[-1],))
        log_scale = regularise.limit(self.param("log_scale", nn.initializers.ones, ()), minimum=-1.5, maximum=1.5)
        return bias_norm(x, bias, log_scale)


def bias_norm(
    x: Float[Array, "*rest D"], bias: Float[Array, " D"], log_scale: Float[Array, ""]
) -> Float[Array, "*rest D"]:
    """The function of `BiasNorm`."""
    wide = x.astype(jnp.float32)
    deviation = wide - per_channel(bias, wide)
    # The small number keeps padding, which may equal the bias, from giving infinity times zero.
    inverse = jax.lax.rsqrt(jnp.mean(deviation**2, axis=-1, keepdims=True) + 1e-20)
    return (wide * (inverse * jnp.exp(log_scale))).astype(x.dtype)


class BatchNorm(nn.Module):
    """Each channel's values over the valid frames of the batch, to mean 0 and variance 1; then a gain and a bias.

    The batch is the global one: under jit the sums go over all devices. Padding and rows of length 0 have no influence
    and come out as anything. Running statistics take `momentum` of each batch; a batch without frames leaves them as
    they are.

    Source: Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1.
    Differs from: flax.linen.BatchNorm, whose momentum is the share that is kept and whose running variance is with n;
    PyTorch is equal where nothing is padded, or with `counts_padding`.
    """

    momentum: float = 0.1
    eps: float = 1e-5
    counts_padding: bool = False
    """Take statistics over all frames of the padded batch, as PyTorch's trainers do: it matters how it is padded."""
    ddof: int = 1
    """The running variance is that with n - `ddof`: 1 as in PyTorch, 0 as in TensorFlow."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, use_running: bool
    ) -> Float[Array, "B T D"]:
        width = x.shape[-1]
        gain = self.param("gain", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        mean = self.variable("batch_stats", "mean", jnp.zeros, (width,))
        variance = self.variable("batch_stats", "variance", jnp.ones, (width,))
        if use_running:
            return _scaled(x, mean.value, variance.value, gain, bias, self.eps)
        lengths = jnp.full_like(lengths, x.shape[1]) if self.counts_padding else lengths
        y, centre, spread = _normalised(x, lengths, gain, bias, self.eps)
        if not self.is_initializing():
            num = jnp.sum(lengths).astype(jnp.float32)
            share = jnp.where(num > 1, self.momentum, 0.0)
            mean.value += share * (centre - mean.value)
            variance.value += share * (spread * (num / jnp.maximum(num - self.ddof, 1)) - variance.value)
        return y


def _scaled(x: Array, mean: Array, variance: Array, gain: Array, bias: Array, eps: float) -> Float[Array, "B T D"]:
    wide, scale = x.astype(jnp.float32), gain * jax.lax.rsqrt(variance + eps)
    return ((wide - per_channel(mean, wide)) * per_channel(scale, wide) + per_channel(bias, wide)).astype(x.dtype)


def _forward(x: Array, lengths: Array, gain: Array, bias: Array, eps: float) -> tuple[Any, Any]:
    mask, num = length_mask(lengths, x.shape[1])[..., None], jnp.maximum(jnp.sum(lengths), 1).astype(jnp.float32)
    wide = x.astype(jnp.float32)
    mean = saved(jnp.sum(jnp.where(mask, wide, 0), (0, 1)) / num)
    variance = saved(jnp.sum(jnp.where(mask, (wide - per_channel(mean, wide)) ** 2, 0), (0, 1)) / num)
    return (_scaled(x, mean, variance, gain, bias, eps), mean, variance), (x, lengths, gain, mean, variance)


# With a derivative of its own, which passes over the frames twice where that of the formula passes five times and keeps
# several arrays of their size.
@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _normalised(
    x: Float[Array, "B T D"], lengths: Int[Array, " B"], gain: Float[Array, " D"], bias: Float[Array, " D"], eps: float
) -> tuple[Float[Array, "B T D"], Float[Array, " D"], Float[Array, " D"]]:
    """What a batch norm gives while training, and the mean and variance (with n) that it takes; these two send no
    gradient.
    """
    return _forward(x, lengths, gain, bias, eps)[0]


def _backward(eps: float, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    x, lengths, gain, mean, variance = saved
    mask, num = length_mask(lengths, x.shape[1])[..., None], jnp.maximum(jnp.sum(lengths), 1).astype(jnp.float32)
    inverse, dy = jax.lax.rsqrt(variance + eps), cotangents[0].astype(jnp.float32)
    unit = (x.astype(jnp.float32) - per_channel(mean, dy)) * per_channel(inverse, dy)
    of_gain = jnp.sum(jnp.where(dy != 0, dy * unit, 0), (0, 1))  # padding may be anything
    of_bias = jnp.sum(dy, (0, 1))
    through = (per_channel(of_bias, dy) + unit * per_channel(of_gain, dy)) / num
    dx = per_channel(gain * inverse, dy) * (dy - jnp.where(mask, through, 0))
    return dx.astype(x.dtype), None, of_gain, of_bias


_normalised.defvjp(_forward, _backward)


class GroupNorm(nn.Module):
    """All frames of an utterance and all channels of a group to mean 0 and variance 1; then a gain and a bias for each
    channel. With one group it is a layer norm over time as well, with a group per channel an instance norm.

    Padding has no influence, unless the norm `counts_padding`. Source: Wu and He 2018 (arXiv:1803.08494);
    torch.nn.GroupNorm, which counts padding.
    """

    num_groups: int
    counts_padding: bool = False
    eps: float = 1e-5

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
