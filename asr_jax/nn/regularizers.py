"""Regularisers by a batch's statistics: each gives its input back, and changes the gradient that passes through it.

`apply` is a traced boolean, drawn by the caller; where it is false, nothing is computed. `mask`, where given, marks the
frames that count, [B T] for an input [B T ...]. Statistics are float32, over all rows of the (global) batch.

Source: Balancer and Whiten in icefall's egs/librispeech/ASR/zipformer/scaling.py. Differs from: there, statistics are
over one GPU's batch and include the padding.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Scalar = float | Float[Array, ""]
Mask = Bool[Array, "B T"] | None


def balance(
    x: Float[Array, "... D"],
    apply: Bool[Array, ""],
    *,
    min_positive: Scalar = 0.05,
    max_positive: Scalar = 0.95,
    min_abs: Scalar = 0.2,
    max_abs: Scalar = 100.0,
    grad_scale: Scalar = 0.04,
    mask: Mask = None,
) -> Float[Array, "... D"]:
    """Pushes each channel's share of positive values and mean absolute value into the given ranges.

    The ranges are turned into ranges of mean/deviation and of RMS, as they are for normally distributed values.
    """
    limits = (_mean_for(min_positive), _mean_for(max_positive), _rms_for(min_abs), _rms_for(max_abs), grad_scale)
    return _balance(x, apply, tuple(jnp.float32(limit) for limit in limits), _weights(x, mask))


def whiten(
    x: Float[Array, "... D"],
    apply: Bool[Array, ""],
    *,
    limit: Scalar,
    grad_scale: Scalar,
    num_groups: int = 1,
    mask: Mask = None,
) -> Float[Array, "... D"]:
    """Pushes the covariance within each group of channels towards λ·I where its `whitening_metric` exceeds `limit`.

    Differs from: the peer asks seldom (2.5 % instead of 25 % of the time) after it found the metric below the limit, to
    save time; a random choice with a memory is no pure function, so the caller's chance stays at the higher value.
    """
    return _whiten(x, apply, jnp.float32(limit), jnp.float32(grad_scale), _weights(x, mask), num_groups)


def whitening_metric(x: Float[Array, "... D"], *, num_groups: int = 1, mask: Mask = None) -> Float[Array, ""]:
    """mean(λ²) / mean(λ)² of the eigenvalues λ of the groups' covariances: 1 for white, larger otherwise."""
    return _metric(_covariance(_centred(x, _weights(x, mask)), num_groups))


def _mean_for(share_positive: Scalar) -> Array:
    """mean/deviation where a share of normally distributed values is positive, through a crude inverse of erf."""
    x = 2.0 * jnp.float32(share_positive) - 1.0
    return 0.8139535143 * 0.5 * (jnp.log(1.0 + x + 1e-10) - jnp.log(1.0 - x + 1e-10))


def _rms_for(mean_abs: Scalar) -> Array:
    """RMS of normally distributed values of a mean absolute value: √(π/2) of it."""
    return 1.25331413732 * jnp.float32(mean_abs)


@jax.custom_vjp
def _balance(x: Array, apply: Array, limits: tuple[Array, ...], weights: Array | None) -> Array:
    return x


def _balance_backward(saved: Any, dy: Array) -> tuple[Any, ...]:
    x, apply, limits, weights = saved
    modify = partial(_balanced_gradient, limits=limits, weights=weights)
    return jax.lax.cond(apply, modify, lambda x, dy: dy, x, dy), None, None, None


def _balanced_gradient(x: Array, dy: Array, *, limits: tuple[Array, ...], weights: Array | None) -> Array:
    """dy + grad_scale · |dy| · g / RMS(g), g being the gradient by channel of |m - clip(m)| + |log(r / clip(r))| with
    m = mean/deviation and r = RMS.

    With z = (x - mean)/deviation, dm/dx ∝ 1 - m z and d(log r)/dx ∝ deviation x / r², by the same factor, which RMS(g)
    takes out again. The two are uncorrelated, and their mean squares are 1 + m² and (deviation/r)².
    """
    min_mean, max_mean, min_rms, max_rms, grad_scale = limits
    wide = x.astype(jnp.float32)
    mean, power = _mean(wide, weights), _mean(wide**2, weights)
    power = jnp.maximum(power, 1e-20)
    deviation = jnp.sqrt(jnp.maximum(power - mean**2, 1e-6 * power))
    m, rms = mean / deviation, jnp.sqrt(power)
    over_mean = jnp.where(m > max_mean, 1.0, 0.0) - jnp.where(m < min_mean, 1.0, 0.0)
    over_rms = jnp.where(rms > max_rms, 1.0, 0.0) - jnp.where(rms < min_rms, 1.0, 0.0)
    size = jnp.sqrt(over_mean**2 * (1.0 + m**2) + over_rms**2 * (deviation / rms) ** 2)
    scale = grad_scale / jnp.maximum(size, 1e-10)
    slope = scale * (over_rms * deviation / power - over_mean * m / deviation)
    g = scale * over_mean * (1.0 + m**2) + slope * wide
    g = g if weights is None else g * weights
    wide_dy = dy.astype(jnp.float32)
    return (wide_dy + jnp.abs(wide_dy) * g).astype(dy.dtype)


_balance.defvjp(lambda x, apply, limits, weights: (x, (x, apply, limits, weights)), _balance_backward)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _whiten(x: Array, apply: Array, limit: Array, grad_scale: Array, weights: Array | None, num_groups: int) -> Array:
    return x


def _whiten_backward(num_groups: int, saved: Any, dy: Array) -> tuple[Any, ...]:
    x, apply, limit, grad_scale, weights = saved

    def modify(x: Array, dy: Array) -> Array:
        """dy + grad_scale · ‖dy‖ · p / ‖p‖, p ∝ the gradient of the metric: x (C/v - metric · I), v = mean variance."""
        centred = _centred(x, weights)
        covariance = _covariance(centred, num_groups)
        metric = _metric(covariance)
        variance = jnp.trace(covariance, axis1=1, axis2=2).mean() / covariance.shape[-1]
        direction = covariance / (variance + 1e-20) - metric * jnp.eye(covariance.shape[-1])
        squared = jnp.einsum("gcd,gce,ged->", direction, covariance, direction)  # ‖p‖² without p
        wide_dy = dy.astype(jnp.float32)
        scale = grad_scale * jnp.sqrt(jnp.sum(wide_dy**2) / jnp.maximum(squared, 1e-20))
        direction = jnp.where(metric >= limit, scale, 0.0) * direction
        penalty = jnp.einsum("ngc,gcd->ngd", centred.reshape(-1, *direction.shape[:2]), direction).reshape(x.shape)
        return (wide_dy + penalty).astype(dy.dtype)

    return jax.lax.cond(apply, modify, lambda x, dy: dy, x, dy), None, None, None, None


_whiten.defvjp(lambda x, *rest: (x, (x, *rest[:4])), _whiten_backward)


def _weights(x: Array, mask: Mask) -> Array | None:
    """The mask as numbers that broadcast with `x`."""
    return None if mask is None else mask.reshape(mask.shape + (1,) * (x.ndim - 2)).astype(jnp.float32)


def _mean(x: Array, weights: Array | None) -> Array:
    """The mean over all axes but the last, which are kept."""
    axes = tuple(range(x.ndim - 1))
    if weights is None:
        return jnp.mean(x, axes, keepdims=True)
    repeats = x.size // x.shape[-1] // weights.size
    return jnp.sum(x * weights, axes, keepdims=True) / jnp.maximum(jnp.sum(weights) * repeats, 1.0)


def _centred(x: Array, weights: Array | None) -> Array:
    """[N D] float32 of mean 0; frames that do not count are 0."""
    x = x.astype(jnp.float32)
    x = x - _mean(x, weights)
    return (x if weights is None else x * weights).reshape(-1, x.shape[-1])


def _covariance(x: Float[Array, "N D"], num_groups: int) -> Float[Array, "G C C"]:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    return jnp.einsum("ngc,ngd->gcd", grouped, grouped)


def _metric(covariance: Float[Array, "G C C"]) -> Float[Array, ""]:
    num_groups, width, _ = covariance.shape
    variance = jnp.trace(covariance, axis1=1, axis2=2).sum() / (num_groups * width)
    return jnp.sum((covariance / (variance + 1e-20)) ** 2) / (num_groups * width)
