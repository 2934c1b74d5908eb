"""Linear layers with PyTorch's initialisation, on which published recipes rely."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.core.shapes import is_static


def uniform(bound: float) -> Callable[..., Array]:
    """Returns an initializer that draws uniformly from [-bound, bound)."""

    def draw(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


class Linear(nn.Module):
    """Linear layer, x W + b, computed in `dtype` with float32 parameters.

    W and b are initialised uniformly in ±1/√width_in, as in torch.nn.Linear.

    Source: torch.nn.Linear; `ScaledLinear` in icefall's egs/librispeech/ASR/zipformer/scaling.py.
    """

    features: int
    initial_scale: float | None = None
    """Factor of the initial W; b is then initialised uniformly in ±0.1 times this. None: PyTorch's initialisation."""
    deviation: float | None = None
    """Standard deviation of a normal initialisation of W; b is then initialised with 0. None: uniform."""
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
        return add_bias(y, bias)


def project(x: Float[Array, "*rest D"], kernel: Float[Array, "D E"]) -> Float[Array, "*rest E"]:
    """Matrix product of `x` and `kernel`, with all axes of `x` but the last flattened.

    The gradient of the kernel is then a product of two matrices. Without flattening, XLA on CPUs writes the input of
    that product once more, transposed (BUILD_NOTES.md).
    """
    if not is_static(*x.shape):
        return x @ kernel
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)


def add_bias(y: Float[Array, "*rest D"], bias: Float[Array, " D"]) -> Float[Array, "*rest D"]:
    """Adds `bias` to each frame in the dtype of `y`.

    It is broadcast before the conversion, so that its gradient is summed in its own dtype, float32. XLA on CPUs
    computes a sum in bfloat16 as a window sum, without its fast reductions (BUILD_NOTES.md).
    """
    return y + jnp.broadcast_to(bias, y.shape).astype(y.dtype)


def per_channel(values: Float[Array, " D"], x: Float[Array, "*rest D"]) -> Float[Array, "*ones D"]:
    """Reshapes `values` to broadcast over all axes of `x` but the last, in the dtype of `x`."""
    return values.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
