"""Elementwise regularisers, which return their input unchanged and modify its gradient.

Source: limit_param_value, penalize_abs_values_gt and ScaleGrad in icefall's egs/librispeech/ASR/zipformer/scaling.py.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from asr_jax.core.collectives import total

Scalar = float | Float[Array, ""]


def limit_values(
    x: Float[Array, "..."], apply: Bool[Array, ""], *, minimum: Scalar, maximum: Scalar
) -> Float[Array, "..."]:
    """Negates gradients that would move parameters further outside of [minimum, maximum].

    Args:
        x: Parameters, which are returned unchanged.
        apply: Whether gradients are modified.

    Returns:
        `x`.
    """
    return _limit_values(x, apply, jnp.float32(minimum), jnp.float32(maximum))


def penalize_large(
    x: Float[Array, "..."],
    apply: Bool[Array, ""],
    *,
    limit: float,
    penalty: float,
    mask: Bool[Array, "..."] | None = None,
) -> Float[Array, "..."]:
    """Adds the gradient of penalty · Σ max(|x| - limit, 0).

    One byte per value is stored for the backward pass.

    Args:
        x: Values, which are returned unchanged.
        apply: Whether the penalty is applied.
        limit: Absolute value above which values are penalised.
        penalty: Factor of the sum.
        mask: Values that the penalty includes; broadcasts with `x`. None: all.

    Returns:
        `x`.
    """
    counts = apply & (jnp.abs(x) > limit)
    excess = jnp.where(counts if mask is None else counts & mask, jnp.sign(x), 0).astype(jnp.int8)
    return _add_gradient(x, excess, penalty)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_gradient(x: Float[Array, "..."], scale: float) -> Float[Array, "..."]:
    """Returns `x`, and multiplies its gradient by `scale`."""
    return x


scale_gradient.defvjp(lambda x, scale: (x, None), lambda scale, _, dy: (dy * scale,))


@jax.custom_vjp
def _limit_values(x: Array, apply: Array, minimum: Array, maximum: Array) -> Array:
    return x


def _limit_backward(saved: Any, dy: Array) -> tuple[Any, ...]:
    x, apply, minimum, maximum = saved
    whole = total(dy)  # the values are parameters, which are the same on all devices
    outwards = ((x < minimum) & (whole > 0)) | ((x > maximum) & (whole < 0))
    return jnp.where(apply & outwards, -dy, dy), None, None, None


_limit_values.defvjp(lambda x, *rest: (x, (x, *rest)), _limit_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _add_gradient(x: Array, excess: Array, penalty: float) -> Array:
    return x


_add_gradient.defvjp(
    lambda x, excess, penalty: (x, excess),
    lambda penalty, excess, dy: (dy + (penalty * excess).astype(dy.dtype), None),
)
