"""Normalisation layers, which always compute in float32."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.collectives import total
from asr_jax.kernels.bias_norm.api import bias_norm
from asr_jax.kernels.masked_batch_norm.api import batch_norm, masked_batch_norm
from asr_jax.nn.linear import per_channel
from asr_jax.nn.stochastic import Regulariser


def layer_norm(eps: float, *, name: str) -> nn.LayerNorm:
    """Returns a layer norm over the last axis, computed in float32.

    The variance is the mean of squared deviations. Flax's default, E[x²] - E[x]², cancels if the mean is large.
    """
    return nn.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)


def normed(name: str, x: Float[Array, "*rest D"], eps: float = 1e-5) -> Float[Array, "*rest D"]:
    """Returns the output of a new layer norm of the current module, in the dtype of `x`."""
    return layer_norm(eps, name=name)(x).astype(x.dtype)


class BiasNorm(nn.Module):
    """Bias norm: x · exp(log_scale) / RMS(x - bias) over the last axis, in the dtype of `x`.

    During training with regularisers, log_scale is kept within ±1.5.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.3; `BiasNorm` in icefall's zipformer/scaling.py.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "*rest D"], *, regularise: Regulariser) -> Float[Array, "*rest D"]:
        bias = self.param("bias", nn.initializers.normal(1e-4), (x.shape[-1],))
        log_scale = regularise.limit(self.param("log_scale", nn.initializers.ones, ()), minimum=-1.5, maximum=1.5)
        return bias_norm(x, bias, log_scale)


class BatchNorm(nn.Module):
    """Batch norm over the valid frames of the batch, with a gain and a bias per channel.

    Statistics are of the global batch: under jit the sums are over all devices. Padding and rows of length 0 do not
    contribute, and their outputs are arbitrary. A batch without frames does not change the running statistics.

    Source: Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1.
    Differs from: flax.linen.BatchNorm: there, the momentum is the factor of the old statistics, and the running
    variance divides by n. PyTorch's is equal if nothing is padded, or with `counts_padding`.
    """

    momentum: float = 0.1
    """Weight of each batch in the running statistics."""
    eps: float = 1e-5
    counts_padding: bool = False
    """Whether statistics include padding, as in PyTorch's trainers. Results then depend on the amount of padding."""
    ddof: int = 1
    """Delta degrees of freedom of the running variance, which divides by n - `ddof`: 1 as in PyTorch, 0 as in
    TensorFlow."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, use_running: bool | Bool[Array, ""]
    ) -> Float[Array, "B T D"]:
        """Normalises `x`.

        Args:
            use_running: Whether the running statistics normalise, and do not change.
        """
        width = x.shape[-1]
        gain = self.param("gain", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        mean = self.variable("batch_stats", "mean", jnp.zeros, (width,))
        variance = self.variable("batch_stats", "variance", jnp.ones, (width,))
        if use_running is True:
            return batch_norm(x, mean.value, variance.value, gain, bias, self.eps)
        lengths = jnp.full_like(lengths, x.shape[1]) if self.counts_padding else lengths
        y, centre, spread = masked_batch_norm(x, lengths, gain, bias, self.eps)
        if not self.is_initializing():
            num = total(jnp.sum(lengths)).astype(jnp.float32)
            share = jnp.where((num > 1) & jnp.logical_not(use_running), self.momentum, 0.0)
            if use_running is not False:  # the training step decides
                y = jnp.where(use_running, batch_norm(x, mean.value, variance.value, gain, bias, self.eps), y)
            mean.value += share * (centre - mean.value)
            variance.value += share * (spread * (num / jnp.maximum(num - self.ddof, 1)) - variance.value)
        return y


def frozen_norms(until: Mapping[str, float], step: Int[Array, ""]) -> AbstractContextManager[None]:
    """Returns a context in which batch norms that are frozen behave in training as in evaluation.

    They normalise by their running statistics, which do not change.

    Args:
        until: Number of updates before which a batch norm is frozen, by the path of its module; infinity: always.
    """

    def of_module(call: Any, given: Any, named: Any, context: nn.module.InterceptorContext) -> Any:
        number = until.get("/".join(context.module.path), 0.0) if isinstance(context.module, BatchNorm) else 0.0
        if number and context.method_name == "__call__" and named["use_running"] is False:
            named = named | {"use_running": True if math.isinf(number) else step < number}
        return call(*given, **named)

    return nn.intercept_methods(of_module)


class GroupNorm(nn.Module):
    """Group norm over the valid frames of an utterance, with a gain and a bias per channel.

    With one group it is a layer norm over time and channels. With one group per channel it is an instance norm.

    Source: Wu and He 2018 (arXiv:1803.08494); torch.nn.GroupNorm, which includes padding.
    """

    num_groups: int
    counts_padding: bool = False
    """Whether statistics include padding."""
    eps: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, use_running: bool = True
    ) -> Float[Array, "B T D"]:
        """Normalises `x`. `use_running` has no effect, since there are no running statistics."""
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
