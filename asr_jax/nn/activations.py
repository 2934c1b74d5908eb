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
