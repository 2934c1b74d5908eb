"""Regularisers by batch statistics, which return their input unchanged and modify its gradient.

`apply` is a traced boolean that the caller draws; if it is false, nothing is computed. `mask` selects the frames of the
statistics and has shape [B T] for an input [B T ... D]. Statistics are float32, over all rows of the global batch.

Source: Balancer and Whiten in icefall's egs/librispeech/ASR/zipformer/scaling.py. Differs from: icefall's statistics
are over the batch of one GPU and include the padding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from asr_jax.core.collectives import mean, total
from asr_jax.kernels.gradients import of_inputs

Scalar = float | Float[Array, ""]
Mask = Bool[Array, "B T"] | None
Shares = Float[Array, " N"] | None
"""Weight of each frame in the statistics, with a sum of 1. None: equal weights."""


def balance(
    x: Float[Array, "*rest D"],
    apply: Bool[Array, ""],
    *,
    min_positive: Scalar = 0.05,
    max_positive: Scalar = 0.95,
    min_abs: Scalar = 0.2,
    max_abs: Scalar = 100.0,
    grad_scale: Scalar = 0.04,
    mask: Mask = None,
) -> Float[Array, "*rest D"]:
    """Pushes the proportion of positive values and the mean absolute value of each channel into the given ranges.

    The ranges are converted to ranges of mean/deviation and of RMS under the assumption of a normal distribution.

    Args:
        min_positive: Least proportion of positive values, in (0, 1).
        max_positive: Largest proportion of positive values.
        min_abs: Least mean absolute value.
        max_abs: Largest mean absolute value.
        grad_scale: Size of the added gradient relative to that of `x`.
        mask: Frames of the statistics. None: all.
    """
    limits = (_mean_for(min_positive), _mean_for(max_positive), _rms_for(min_abs), _rms_for(max_abs), grad_scale)
    return _modified(_balanced_gradient)(x, apply, tuple(map(jnp.float32, limits)), _shares(x, mask))


def whiten(
    x: Float[Array, "*rest D"],
    apply: Bool[Array, ""],
    *,
    limit: Scalar,
    grad_scale: Scalar,
    num_groups: int = 1,
    mask: Mask = None,
) -> Float[Array, "*rest D"]:
    """Pushes the covariance within each group of channels towards λ·I if it is not white enough.

    The metric is mean(λ²) / mean(λ)² of the eigenvalues λ of the groups' covariances: 1 if white, larger otherwise.

    Differs from: icefall lowers the probability of the computation from 25 % to 2.5 % after the metric was below the
    limit, to save time. This requires state, and the caller's probability here stays at the higher value.

    Args:
        limit: Metric from which the gradient is modified.
        grad_scale: Norm of the added gradient relative to that of `x`.
        mask: Frames of the statistics. None: all.
    """
    whitened = _modified(partial(_whitened_gradient, num_groups=num_groups))
    return whitened(x, apply, jnp.float32(limit), jnp.float32(grad_scale), _shares(x, mask))


def _mean_for(share_positive: Scalar) -> Array:
    """Mean/deviation of a normal distribution with a proportion of positive values, by an approximate inverse erf."""
    x = 2.0 * jnp.float32(share_positive) - 1.0
    return 0.8139535143 * 0.5 * (jnp.log(1.0 + x + 1e-10) - jnp.log(1.0 - x + 1e-10))


def _rms_for(mean_abs: Scalar) -> Array:
    """RMS of a zero-mean normal distribution with a mean absolute value: √(π/2) times the latter."""
    return 1.25331413732 * jnp.float32(mean_abs)


def _modified(modify: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a function of `x`, `apply` and further arguments that returns `x`.

    Args:
        modify: Gradient of `x` if `apply` is true, from `x`, its former gradient and the further arguments.
    """

    def backward(x: Array, apply: Array, *rest: Any) -> tuple[Array]:
        *given, dy = rest
        return (jax.lax.cond(apply, lambda x, dy: modify(x, dy, *given), lambda x, dy: dy, x, dy),)

    return of_inputs(lambda x, *_: x, backward)


def _balanced_gradient(x: Array, dy: Array, limits: tuple[Any, ...], shares: Any) -> Array:
    """Computes dy + grad_scale · |dy| · g / RMS(g) with the gradient g of the penalty of each channel.

    The penalty is |m - clip(m)| + |log(r / clip(r))| with m = mean/deviation and r = RMS. With
    z = (x - mean)/deviation, dm/dx ∝ 1 - m z and d(log r)/dx ∝ deviation x / r², with the same factor, which cancels in
    g / RMS(g). The two are uncorrelated, and their mean squares are 1 + m² and (deviation/r)².
    """
    min_mean, max_mean, min_rms, max_rms, grad_scale = limits
    frames = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    mean, power = _mean(frames, shares), jnp.maximum(_mean(frames**2, shares), 1e-20)
    deviation = jnp.sqrt(jnp.maximum(power - mean**2, 1e-6 * power))
    m, rms = mean / deviation, jnp.sqrt(power)
    over_mean = jnp.where(m > max_mean, 1.0, 0.0) - jnp.where(m < min_mean, 1.0, 0.0)
    over_rms = jnp.where(rms > max_rms, 1.0, 0.0) - jnp.where(rms < min_rms, 1.0, 0.0)
    size = jnp.sqrt(over_mean**2 * (1.0 + m**2) + over_rms**2 * (deviation / rms) ** 2)
    scale = grad_scale / jnp.maximum(size, 1e-10)
    slope = scale * (over_rms * deviation / power - over_mean * m / deviation)
    g = (scale * over_mean * (1.0 + m**2))[None] + slope[None] * frames
    g = g if shares is None else jnp.where(shares[:, None] > 0, g, 0.0)
    wide_dy = dy.astype(jnp.float32)
    return (wide_dy + jnp.abs(wide_dy) * g.reshape(x.shape)).astype(dy.dtype)


def _whitened_gradient(x: Array, dy: Array, limit: Any, grad_scale: Any, shares: Any, *, num_groups: int) -> Array:
    """Computes dy + grad_scale · ‖dy‖ · p / ‖p‖ with p = x (C/v - metric · I), which is ∝ the gradient of the metric.

    C is the covariance of a group, and v is the mean variance.
    """
    centred = _centred(x, shares)
    covariance = _covariance(centred, num_groups)
    scaled = _scaled(covariance)
    metric = jnp.sum(scaled**2) / x.shape[-1]
    direction = scaled - metric * jnp.eye(scaled.shape[-1])[None]
    squared = jnp.sum(direction * jnp.einsum("gcd,gde->gce", covariance, direction))  # ‖p‖² without p in memory
    wide_dy = dy.astype(jnp.float32)
    scale = grad_scale * jnp.sqrt(total(jnp.sum(wide_dy**2)) / jnp.maximum(squared, 1e-20))
    direction *= jnp.where(metric >= limit, scale, 0.0)
    penalty = jnp.einsum("ngc,gcd->ngd", centred.reshape(-1, *direction.shape[:2]), direction)
    return (wide_dy + penalty.reshape(x.shape)).astype(dy.dtype)


def _shares(x: Array, mask: Mask) -> Shares:
    if mask is None:
        return None
    shares = (mask / jnp.maximum(total(mask.sum()), 1)).astype(jnp.float32)
    inner = x.shape[2:-1]
    repeated = jnp.broadcast_to(shares.reshape(*mask.shape, *(1,) * len(inner)), (*mask.shape, *inner))
    return (repeated / max(x[0, 0].size // x.shape[-1], 1)).reshape(-1)


def _mean(frames: Float[Array, "N D"], shares: Shares) -> Float[Array, " D"]:
    return mean(jnp.mean(frames, 0)) if shares is None else total(shares @ frames)


def _centred(x: Array, shares: Shares) -> Float[Array, "N D"]:
    """Subtracts the mean of all frames, in float32, and sets frames of weight 0 to 0."""
    frames = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    frames -= _mean(frames, shares)[None]
    return frames if shares is None else jnp.where(shares[:, None] > 0, frames, 0.0)


def _covariance(frames: Float[Array, "N D"], num_groups: int) -> Float[Array, "G C C"]:
    """Covariance of each group as a sum over frames, without division by their number."""
    grouped = frames.reshape(len(frames), num_groups, -1)
    return total(jnp.einsum("ngc,ngd->gcd", grouped, grouped))


def _scaled(covariance: Float[Array, "G C C"]) -> Float[Array, "G C C"]:
    """Divides covariances by the mean variance of all groups."""
    num_groups, width, _ = covariance.shape
    variance = jnp.sum(covariance * jnp.eye(width)[None]) / (num_groups * width)
    return covariance / (variance + 1e-20)
