"""Linear layers that begin as PyTorch's do, which published recipes rely on."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def uniform(bound: float) -> Callable[..., Array]:
    """Values drawn evenly from (-bound, bound)."""

    def draw(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


class Linear(nn.Module):
    """x W + b, in `dtype` with float32 parameters.

    Both begin evenly in ±1/√width_in. With an `initial_scale`, W is multiplied by it and b begins in ±0.1 of it; with a
    `deviation`, W begins with a normal distribution of it and b with 0.

    Source: torch.nn.Linear; `ScaledLinear` in icefall's egs/librispeech/ASR/zipformer/scaling.py.
    """

    features: int
    initial_scale: float | None = None
    deviation: float | None = None
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rest D"]) -> Float[Array, "*rest {self.features}"]:
        bound = x.shape[-1] ** -0.5
        scale = 1.0 if self.initial_scale is None else self.initial_scale
        initial = uniform(bound * scale) if self.deviation is None else nn.initializers.normal(self.deviation)
        kernel = self.param("kernel", initial, (x.shape[-1], self.features))
        y = project(x.astype(self.dtype), kernel.astype(self.dtype))
        if not self.use_bias:
            return y
        bound_of_bias = bound if self.initial_scale is None else 0.1 * scale
        initial = uniform(bound_of_bias) if self.deviation is None else nn.initializers.zeros
        bias = self.param("bias", initial, (self.features,))
        return y + per_channel(bias, y)


def project(x: Float[Array, "*rest D"], kernel: Float[Array, "D E"]) -> Float[Array, "*rest E"]:
    """X W, with all but the last axis of x as one: the kernel's gradient is then a product of two matrices. With more
    axes to sum over, XLA writes what comes before the product once more, transposed, on CPUs (BUILD_NOTES.md).
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)


def per_channel(values: Float[Array, " D"], x: Float[Array, "*rest D"]) -> Float[Array, "*ones D"]:
    """`values` with the rank and the type of `x`, so that they combine channel by channel."""
    return values.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
