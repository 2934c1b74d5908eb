"""Vectors of labels."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


class Embedding(nn.Module):
    """Learned vectors of labels, initialised from a standard normal distribution."""

    num_labels: int
    dim: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, labels: Int[Array, "*N"]) -> Float[Array, "*N D"]:
        table = self.param("embedding", nn.initializers.normal(1.0), (self.num_labels, self.dim))
        return look_up(table.astype(self.dtype), labels)


@jax.custom_vjp
def look_up(table: Float[Array, "V D"], labels: Int[Array, "*N"]) -> Float[Array, "*N D"]:
    """Returns the rows of a table at labels.

    The gradient sums the vectors of equal labels. On a CPU, a scatter adds them. Elsewhere, a scatter adds in an order
    that changes from call to call, and a product with one-hot vectors replaces it.
    """
    return jnp.take(table, labels, axis=0)


def _forward(table: Array, labels: Array) -> tuple[Array, tuple[Array, Array]]:
    return look_up(table, labels), (table, labels)


def _backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    table, labels = kept
    return lax.platform_dependent(table, labels, cotangent, cpu=_by_scatter, default=_by_product), None


def _by_scatter(table: Array, labels: Array, cotangent: Array) -> Array:
    return jnp.zeros_like(table).at[labels].add(cotangent)


def _by_product(table: Array, labels: Array, cotangent: Array) -> Any:
    one_hot = jax.nn.one_hot(labels, len(table), dtype=cotangent.dtype)
    product = jnp.einsum(
        "...v,...d->vd", one_hot, cotangent, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return product.astype(table.dtype)


look_up.defvjp(_forward, _backward)
