"""Activation functions."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ActivationName = Literal["relu", "clipped_relu", "hardtanh", "selu", "silu", "gelu", "gelu_tanh", "tanh", "identity"]
"""Name of an activation in `ACTIVATIONS`.

clipped_relu is relu clipped at 20. hardtanh clips to [-1, 1]. gelu_tanh is the tanh approximation of gelu.
"""
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "clipped_relu": lambda x: jnp.clip(x, 0, 20),
    "hardtanh": lambda x: jnp.clip(x, -1, 1),
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
    "gelu": lambda x: gelu(x),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Gaussian error linear unit, 0.5 x (1 + erf(x / √2)), in the dtype of `x`.

    The function computes in float32, since 1 + erf cancels in half precision. It uses erf, as PyTorch does.
    `jax.nn.gelu` uses erfc, which is slower on CPUs and more accurate if the result is close to 0.

    Source: Hendrycks and Gimpel 2016 (arXiv:1606.08415).
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1 + jax.lax.erf(wide * (0.5**0.5)))).astype(x.dtype)


def swoosh_l(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Swoosh-L activation, log(1 + exp(x - 4)) - 0.08 x - 0.035, in the dtype of `x`, computed in float32.

    Only `x` is stored for the backward pass.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.4.
    """
    return _swoosh(x, 4.0, 0.035)


def swoosh_r(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Swoosh-R activation, log(1 + exp(x - 1)) - 0.08 x - 0.313261687, in the dtype of `x`, computed in float32.

    The activation of 0 is 0. Only `x` is stored for the backward pass.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.4.
    """
    return _swoosh(x, 1.0, 0.313261687)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _swoosh(x: Array, shift: float, offset: float) -> Array:
    wide = x.astype(jnp.float32)
    shifted = wide - shift
    softplus = jnp.maximum(shifted, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(shifted)))
    return (softplus - 0.08 * wide - offset).astype(x.dtype)


def _forward(x: Array, shift: float, offset: float) -> tuple[Array, Array]:
    return _swoosh(x, shift, offset), x


def _backward(shift: float, offset: float, x: Array, dy: Array) -> tuple[Array]:
    slope = jax.nn.sigmoid(x.astype(jnp.float32) - shift) - 0.08
    return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


_swoosh.defvjp(_forward, _backward)
