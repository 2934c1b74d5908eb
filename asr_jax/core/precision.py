"""Which types are computed in. Parameters, statistics, optimizer state, losses and norms are always float32."""

from typing import Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

Precision = Literal["f32", "bf16"]


def compute_dtype(precision: Precision) -> DTypeLike:
    """The type of activations and of the weights that multiply them."""
    return {"f32": jnp.float32, "bf16": jnp.bfloat16}[precision]
