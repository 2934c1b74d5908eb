"""Convolutions with strides over time and frequency that begin Conformer and FastConformer."""

from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.kernels.depthwise_conv.api import depthwise_conv_2d
from asr_jax.nn.linear import Linear, per_channel, uniform

Subsampling = Literal["striding", "dw_striding"]
"""striding: each convolution sees all channels. dw_striding: from the second on, one for each channel and a product
over channels after it."""


def strided_length(num_frames: Any, factor: int) -> Any:
    """Frames that come out: num_frames / factor, rounded up; for ints and arrays."""
    return -(-num_frames // factor)


class StridedSubsampling(nn.Module):
    """3×3 convolutions of stride 2 over time and frequency, each with a ReLU, and a projection of what is left.

    With `mask_padding`, what lies beyond a row's length is 0 for each convolution, as if the row were alone.

    Source: `ConvSubsampling` in NeMo's nemo/collections/asr/parts/submodules/subsampling.py at commit 8cfedd72, which
    masks since 0fd4de53.
    """

    features: int
    factor: int
    """A power of 2, at least 2: so many convolutions."""
    channels: int
    kind: Subsampling = "striding"
    mask_padding: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T F"], lengths: Int[Array, " B"]) -> Float[Array, "B S D"]:
        x = x.astype(self.dtype)[..., None]
        for number in range(self.factor.bit_length() - 1):
            if self.mask_padding:
                frames = strided_length(lengths, 2**number)
                x *= length_mask(frames, x.shape[1])[:, :, None, None].astype(x.dtype)
            if number == 0 or self.kind == "dw_striding":
                x = StridedFilters(self.channels, name=f"filters_{number}")(x)
                if number > 0:
                    x = Linear(self.channels, dtype=self.dtype, name=f"mix_{number}")(x)
            else:
                initial = uniform((9 * self.channels) ** -0.5)
                x = nn.Conv(
                    self.channels, (3, 3), 2, padding=1, kernel_init=initial, bias_init=initial, dtype=self.dtype,
                    name=f"conv_{number}",
                )(x)  # fmt: skip
            x = nn.relu(x)
        return Linear(self.features, dtype=self.dtype, name="out")(x.reshape(*x.shape[:2], -1))


class StridedFilters(nn.Module):
    """A 3×3 filter of stride 2 for each channel, or `channels` of them for the one channel that there is."""

    channels: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T F C"]) -> Float[Array, "B S G {self.channels}"]:
        kernel = self.param("kernel", uniform(1 / 3), (3, 3, self.channels))
        bias = self.param("bias", uniform(1 / 3), (self.channels,))
        y = depthwise_conv_2d(x, kernel, padding=((1, 1), (1, 1)), strides=(2, 2))
        return y + per_channel(bias, y)
