"""Functions of one array that are computed for each element, as programs of XLA."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.kernels.gradients import of_inputs

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def elementwise(value: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Elementwise:
    """Returns a function that computes in float32, in the dtype of its input, which alone is kept for the gradient.

    Args:
        value: The function in float32.
    """

    def forward(x: Array) -> Array:
        return value(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: Array, dy: Array) -> tuple[Array]:
        return ((dy.astype(jnp.float32) * slope(x.astype(jnp.float32))).astype(x.dtype),)

    return of_inputs(forward, backward)
