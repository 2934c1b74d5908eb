"""A small encoder of convolutions over time, as an example of a new model: docs/adding-a-model.md."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from asr_jax.core.batch import Encoded, Frames, zero_padding
from asr_jax.core.settings import PositiveInt, ShareBelow1, settings
from asr_jax.models.encoder import Encoder, EncoderSettings
from asr_jax.nn.normalization import normed
from asr_jax.nn.stochastic import Dropout


@settings
class SmallCNN(EncoderSettings):
    """Settings of the small CNN."""

    dim: PositiveInt = 128
    """Number of channels."""
    num_halvings: PositiveInt = 2
    """Number of convolutions with stride 2, each of which halves the frame rate."""
    num_layers: PositiveInt = 6
    """Number of residual layers."""
    kernel_size: PositiveInt = 9
    """Length of the convolution of a layer, in frames."""
    dropout: ShareBelow1 = 0.1
    """Dropout rate of the output of a layer."""

    def build(self, *, dtype: DTypeLike) -> "SmallCNNEncoder":
        return SmallCNNEncoder(self, dtype)


class SmallCNNEncoder(Encoder):
    """Small CNN, [B T F] to [B ⌈T/2^num_halvings⌉ dim]."""

    settings: SmallCNN
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, x, lengths = self.settings, frames.values.astype(self.dtype), frames.lengths
        for number in range(settings.num_halvings):
            x = zero_padding(x, lengths)  # padding must not enter valid frames
            x = nn.Conv(settings.dim, (3,), strides=2, padding=1, dtype=self.dtype, name=f"halving_{number}")(x)
            x, lengths = nn.gelu(x), _half(lengths)
        for number in range(settings.num_layers):
            y = zero_padding(normed(f"norm_{number}", x), lengths)
            y = nn.Conv(settings.dim, (settings.kernel_size,), dtype=self.dtype, name=f"conv_{number}")(y)
            x += Dropout(settings.dropout)(nn.gelu(y), step=step)
        return Encoded(Frames(normed("norm", x), lengths))

    def output_length(self, num_frames: Any) -> Any:
        for _ in range(self.settings.num_halvings):
            num_frames = _half(num_frames)
        return num_frames


def _half(num_frames: Any) -> Any:
    """Returns the number of outputs of a convolution with stride 2 and a zero on both sides."""
    return (num_frames + 1) // 2
