"""Swoosh activations and their approximations with a logistic gate: the specification of the other implementations."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.kernels.elementwise import elementwise

SWOOSHES = {"swoosh_l": (4.0, 0.035), "swoosh_r": (1.0, 0.313261687)}
"""Shift and offset of each: log(1 + exp(x - shift)) - 0.08 x - offset."""
SWISHES = {"shifted_swish_l": (4.0,), "shifted_swish_r": (1.0,)}
"""Shift of each: x σ(x - shift)."""


def swoosh(x: Float[Array, "..."], shift: float, offset: float) -> Float[Array, "..."]:
    """Swoosh in float32.

    Args:
        shift: Subtracted from the input before the softplus.
        offset: Subtracted from the output.
    """
    shifted = x - shift
    softplus = jnp.maximum(shifted, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(shifted)))
    return softplus - 0.08 * x - offset


def swoosh_slope(x: Float[Array, "..."], shift: float, offset: float) -> Float[Array, "..."]:
    """Derivative of `swoosh`.

    Args:
        offset: Offset, which does not change the derivative.
    """
    return jax.nn.sigmoid(x - shift) - 0.08


def shifted_swish(x: Float[Array, "..."], shift: float) -> Float[Array, "..."]:
    """Shifted swish in float32."""
    return x * jax.nn.sigmoid(x - shift)


def shifted_swish_slope(x: Float[Array, "..."], shift: float) -> Float[Array, "..."]:
    """Derivative of `shifted_swish`."""
    gate = jax.nn.sigmoid(x - shift)
    return gate * (1 + x * (1 - gate))


FORMULAS = {
    name: (partial(swoosh, shift=shift, offset=offset), partial(swoosh_slope, shift=shift, offset=offset))
    for name, (shift, offset) in SWOOSHES.items()
} | {
    name: (partial(shifted_swish, shift=shift), partial(shifted_swish_slope, shift=shift))
    for name, (shift,) in SWISHES.items()
}
"""Value and derivative of each function, in float32."""
FUNCTIONS = {name: elementwise(*formulas) for name, formulas in FORMULAS.items()}
