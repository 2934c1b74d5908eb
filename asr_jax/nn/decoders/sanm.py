"""Attention with memory (SAN-M): self-attention plus a depthwise convolution of values; attention to an encoder.

Source: Gao et al. 2020, "SAN-M: Memory Equipped Self-Attention for End-to-End Speech Recognition" (arXiv:2006.01713);
FunASR's funasr/models/sanm/attention.py at commit 3c58cb56.
"""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import zero_padding
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import AnyArray
from asr_jax.core.shapes import DimSize, numbers
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.nn.attention import attention_weights
from asr_jax.nn.linear import Linear, uniform
from asr_jax.nn.positions import sines_and_cosines
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

NORM_EPS = 1e-12
"""Epsilon of all of FunASR's layer norms but that of `input_layer: linear`."""


class Memory(nn.Module):
    """Memory block (FSMN): a depthwise convolution over valid frames, with a residual connection.

    Padding of the output is 0.
    """

    kernel_size: int
    shift: int
    """Number of taps by which the convolution is shifted to the past."""
    dropout: float

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B T D"]:
        kernel = self.param("kernel", uniform(self.kernel_size**-0.5), (self.kernel_size, x.shape[-1]))
        x = zero_padding(x, lengths)
        before = (self.kernel_size - 1) // 2 + self.shift
        found = saved(depthwise_conv(x, kernel, padding=(before, self.kernel_size - 1 - before)))
        return zero_padding(Dropout(self.dropout)(found + x, step=step), lengths)


class MemoryAttention(nn.Module):
    """Self-attention plus the memory block of its values."""

    dim: int
    """Width of the output. That of the input may differ."""
    num_heads: int
    kernel_size: int
    shift: int
    dropout: float
    """Dropout rate of the attention weights and of the memory."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], allowed: Bool[Array, "B 1 T"], lengths: Int[Array, " B"], *, step: Step
    ) -> Float[Array, "B T {self.dim}"]:
        """Applies attention to `x`.

        Args:
            allowed: Keys (last axis) that queries may attend to.
        """
        query, key, value = jnp.split(Linear(3 * self.dim, dtype=self.dtype, name="in")(x), 3, axis=-1)
        memory = Memory(self.kernel_size, self.shift, self.dropout, name="memory")(value, lengths, step=step)
        weights = Dropout(self.dropout)(weights_of_heads(query, key, allowed, self.num_heads), step=step)
        return Linear(self.dim, dtype=self.dtype, name="out")(mixed(weights, value)) + memory


class Attention(nn.Module):
    """Multi-head attention of queries to a sequence of frames."""

    num_heads: int
    dropout: float
    """Dropout rate of the attention weights."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B U D"], memory: Float[Array, "B T E"], allowed: Bool[Array, "B 1 T"], *, step: Step
    ) -> Float[Array, "B U D"]:
        """Applies attention to `memory`.

        Args:
            allowed: Keys (last axis) that queries may attend to.

        Raises:
            UserError: If the width of `x` is no multiple of the number of heads.
        """
        width = x.shape[-1]
        if width % self.num_heads:
            raise UserError(
                f"decoder.num_heads is {self.num_heads}: expected a divisor of the encoder's width, {width}, which the "
                "decoder has as well"
            )
        query = Linear(width, dtype=self.dtype, name="query")(x)
        key, value = jnp.split(Linear(2 * width, dtype=self.dtype, name="key_value")(memory), 2, axis=-1)
        weights = Dropout(self.dropout)(weights_of_heads(query, key, allowed, self.num_heads), step=step)
        return Linear(width, dtype=self.dtype, name="out")(mixed(weights, value))


def weights_of_heads(
    query: Float[Array, "B U D"], key: Float[Array, "B T D"], allowed: Bool[Array, "#B #U T"], num_heads: int
) -> Float[Array, "B H U T"]:
    """Returns `attention_weights` of queries and keys that have all heads side by side."""
    query, key = (each.reshape(*each.shape[:2], num_heads, -1) for each in (query, key))
    return attention_weights(query, key, allowed)


def mixed(weights: Float[Array, "B H U T"], value: Float[Array, "B T D"]) -> Float[Array, "B U D"]:
    """Returns the weighted means of the values, with all heads side by side."""
    value = value.reshape(*value.shape[:2], weights.shape[1], -1)
    found = jnp.einsum("bhut,bthc->buhc", weights, value)
    return found.reshape(*found.shape[:2], -1)


def positions_from_one(num_frames: DimSize, width: int) -> Float[AnyArray, "T D"]:
    """Sinusoidal encodings of the positions 1, 2, …: all sines, then all cosines; float32.

    Source: `SinusoidalPositionEncoder` in FunASR's funasr/models/transformer/embedding.py at commit 3c58cb56.

    Raises:
        ValueError: If `width` is odd or less than 4.
    """
    if width % 2 or width < 4:
        raise ValueError(f"the width of positions is {width}: expected an even number of 4 or more")
    half = width // 2
    rates = np.exp(-np.arange(half) * (np.log(10000.0) / (half - 1)))
    parts = sines_and_cosines(numbers(1, num_frames + 1), rates)
    return parts[0].__array_namespace__().concatenate(parts, axis=1).astype(np.float32)
