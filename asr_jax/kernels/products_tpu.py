"""Products of matrices in Pallas kernels for TPUs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array


def product(a: Array, b: Array, axis: int, other: int) -> Array:
    """Multiplies matrices over an axis of each, in float32.

    Args:
        b: Matrix in the dtype of `a`.
        axis: Axis of `a`.
        other: Axis of `b`.
    """
    numbers = (((axis,), (other,)), ((), ()))
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)
