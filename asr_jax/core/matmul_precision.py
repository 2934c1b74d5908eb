"""Products of activations in half precision whose results are float32."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.core.devices import traced_for


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(axes: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes `jnp.einsum(axes, x, y)` in float32, with products of bfloat16 in the gradient as well.

    JAX's derivative multiplies the float32 gradient of the result by float32 copies of `x` and `y`: twice the bytes and
    at most half the speed on accelerators. On these, the gradient of the result is rounded to bfloat16 if `x` and `y`
    are bfloat16, as PyTorch's autocast and FlashAttention do. Other dtypes have JAX's derivative, because float16 would
    overflow, and so have CPUs, for which XLA does not compile all such products.

    Args:
        axes: Axes of both arrays and of the result, such as "bthc,bshc->bhts". Each axis of an array is an axis of the
            other array or of the result.
        y: Second array, with the dtype of the first.
    """
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)


def _forward(axes: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return float32_product(axes, x, y), (x, y)


def _backward(axes: str, kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, y = kept
    inputs, of_result = axes.split("->")
    of_x, of_y = inputs.split(",")
    if x.dtype == jnp.bfloat16 and traced_for().platform != "cpu":
        cotangent = cotangent.astype(x.dtype)
    dx = jnp.einsum(f"{of_result},{of_y}->{of_x}", cotangent, y, preferred_element_type=jnp.float32)
    dy = jnp.einsum(f"{of_result},{of_x}->{of_y}", cotangent, x, preferred_element_type=jnp.float32)
    return dx.astype(x.dtype), dy.astype(y.dtype)


float32_product.defvjp(_forward, _backward)
