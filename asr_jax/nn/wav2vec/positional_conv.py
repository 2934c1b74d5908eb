"""Convolutional position embedding of wav2vec 2.0."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from asr_jax.kernels.grouped_conv.api import grouped_conv
from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import per_channel
from asr_jax.nn.remat import saved


class PositionalConv(nn.Module):
    """Grouped convolution with a large kernel, and a GELU. It computes in float32, since the sums have many terms.

    Weight normalisation (Salimans and Kingma 2016, arXiv:1602.07868) has one gain per tap. With an even number of taps,
    the left context has one frame more than the right context.

    Source: `make_conv_pos` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    kernel_size: int
    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Computes the position embedding of `x`, which must be 0 beyond each row's length."""
        width, taps = x.shape[-1], self.kernel_size
        shape = (taps, width // self.groups, width)
        deviation = (4.0 / (taps * width)) ** 0.5
        direction = self.param("direction", nn.initializers.normal(deviation), shape)
        norm = jnp.sqrt(jnp.sum(direction**2, axis=(1, 2)))
        gain = self.param("gain", lambda _: norm)
        bias = self.param("bias", nn.initializers.zeros, (width,))
        kernel = direction * (gain / norm)[:, None, None]
        y = saved(grouped_conv(x.astype(jnp.float32), kernel))
        return gelu(y + per_channel(bias, y)).astype(x.dtype)
