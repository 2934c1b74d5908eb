"""Elementwise regularisers, which return their input unchanged and modify its gradient.

Source: limit_param_value, penalize_abs_values_gt and ScaleGrad in icefall's egs/librispeech/ASR/zipformer/scaling.py.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from asr_jax.core.collectives import total
from asr_jax.kernels.gradients import of_inputs, with_gradient

Scalar = float | Float[Array, ""]


def limit_values(
    x: Float[Array, "..."], apply: Bool[Array, ""], *, minimum: Scalar, maximum: Scalar
) -> Float[Array, "..."]:
    """Negates gradients that would move parameters further outside of [minimum, maximum]."""
    return _limited(x, apply, jnp.float32(minimum), jnp.float32(maximum))


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
        mask: Values that the penalty includes; broadcasts with `x`. None: all.
    """
    counts = apply & (jnp.abs(x) > limit)
    excess = jnp.where(counts if mask is None else counts & mask, jnp.sign(x), 0).astype(jnp.int8)
    add_penalty = with_gradient(
        lambda x, excess: (x, excess), lambda excess, dy: (dy + (penalty * excess).astype(dy.dtype), None)
    )
    return add_penalty(x, excess)


def scale_gradient(x: Float[Array, "..."], scale: float) -> Float[Array, "..."]:
    """Returns `x`, and multiplies its gradient by `scale`."""
    return with_gradient(lambda x: (x, None), lambda _, dy: (dy * scale,))(x)


def _limited_gradient(x: Array, apply: Array, minimum: Array, maximum: Array, dy: Array) -> tuple[Array]:
    whole = total(dy)  # the values are parameters, which are the same on all devices
    outwards = ((x < minimum) & (whole > 0)) | ((x > maximum) & (whole < 0))
    return (jnp.where(apply & outwards, -dy, dy),)


_limited = of_inputs(lambda x, *_: x, _limited_gradient)
