"""The convolution that tells wav2vec 2.0's layers where frames are."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from asr_jax.kernels.grouped_conv.api import grouped_conv
from asr_jax.nn.linear import per_channel
from asr_jax.nn.remat import saved


class PositionalConv(nn.Module):
    """A grouped convolution over many frames, and a GELU: in float32, as sums of so many terms need.

    The kernel is a direction for each tap, times a gain (weight normalisation, Salimans and Kingma 2016,
    arXiv:1602.07868). With an even number of taps, one more of them lies before the frame than behind it.

    Source: `make_conv_pos` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    kernel_size: int
    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """`x` is to be 0 beyond a row's length."""
        width, taps = x.shape[-1], self.kernel_size
        shape = (taps, width // self.groups, width)
        deviation = (4.0 / (taps * width)) ** 0.5
        direction = self.param("direction", nn.initializers.normal(deviation), shape)
        norm = jnp.sqrt(jnp.sum(direction**2, axis=(1, 2)))
        gain = self.param("gain", lambda _: norm)
        bias = self.param("bias", nn.initializers.zeros, (width,))
        kernel = direction * (gain / norm)[:, None, None]
        y = saved(grouped_conv(x.astype(jnp.float32), kernel))
        return nn.gelu(y + per_channel(bias, y), approximate=False).astype(x.dtype)
