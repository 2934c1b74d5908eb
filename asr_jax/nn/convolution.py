"""Convolution over time and frequency. Encoders of mel spectrograms subsample by several of these layers."""

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from asr_jax.kernels.depthwise_conv.api import depthwise_conv_2d
from asr_jax.nn.linear import per_channel, uniform


class Conv3x3(nn.Module):
    """A depthwise or full 3×3 convolution over time and frequency, in the dtype of its input."""

    channels: int
    strides: tuple[int, int] = (1, 1)
    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Number of zeros before and behind the input, for frames and for bins."""
    depthwise: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B T F C"]) -> Float[Array, "B S G {self.channels}"]:
        inputs = 1 if self.depthwise else x.shape[-1]
        initial = uniform((9 * inputs) ** -0.5)
        kernel = self.param("kernel", initial, (3, 3, inputs, self.channels))
        bias = self.param("bias", initial, (self.channels,))
        if inputs == 1:
            y = depthwise_conv_2d(x, kernel[:, :, 0], padding=self.pads, strides=self.strides)
        else:
            form = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(x, kernel.astype(x.dtype), self.strides, self.pads, dimension_numbers=form)
        return y + per_channel(bias, y)
