"""Convolutional feature extractor of wav2vec 2.0, from samples to frames."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.shapes import is_static
from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import per_channel, project
from asr_jax.nn.normalization import GroupNorm, normed
from asr_jax.nn.remat import saved

ExtractorNorm = Literal["group", "group_padded", "layer"]
"""Norm of the feature extractor.

group: norm of each channel over an utterance's frames, only after the first convolution. group_padded: as group, over
all frames of the padded row, as in PyTorch's trainers. layer: layer norm over the channels of a frame, after each
convolution.
"""
FEW = 64
"""Largest number of input values per output frame for which `strided_conv` concatenates them before the product."""


class WaveformConv(NamedTuple):
    """Settings of a convolution of the extractor."""

    channels: int
    kernel_size: int
    stride: int


def extracted(length: Any, layers: Sequence[WaveformConv]) -> Any:
    """Number of output frames of the convolutions for a number of samples, at least 0; for ints and arrays."""
    for layer in layers:
        length = (length - layer.kernel_size) // layer.stride + 1
        length = length * (length > 0)
    return length


class ConvExtractor(nn.Module):
    """Feature extractor: convolutions without padding, each with a GELU and, by `norm`, a norm before it.

    Source: Baevski et al. 2020 (arXiv:2006.11477), section 2; `ConvFeatureExtractionModel` in
    fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    layers: tuple[WaveformConv, ...]
    norm: ExtractorNorm
    use_bias: bool
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B S 1"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        """Computes frames from samples.

        Args:
            x: Samples. S must be large enough for one frame: `extracted(S, layers)` is at least 1.
            lengths: Length of each row in samples.

        Returns:
            Frames, T = `extracted(S, layers)`.
        """
        x = x.astype(self.dtype)
        for number, layer in enumerate(self.layers):
            lengths = extracted(lengths, (layer,))
            x = ExtractorConv(layer, self.use_bias, self.dtype, name=f"conv_{number}")(x)
            if self.norm == "layer":
                x = normed(f"norm_{number}", x)
            elif number == 0:
                x = GroupNorm(layer.channels, self.norm == "group_padded", name="norm_0")(x, lengths)
            x = gelu(x)
        return x


class ExtractorConv(nn.Module):
    """Convolution without padding."""

    layer: WaveformConv
    use_bias: bool
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B S {self.layer.channels}"]:
        channels, size, stride = self.layer
        shape = (size, x.shape[-1], channels)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape).astype(self.dtype)
        y = saved(strided_conv(x, kernel, stride=stride))
        return y + per_channel(self.param("bias", nn.initializers.zeros, (channels,)), y) if self.use_bias else y


@partial(jax.jit, static_argnames="stride")  # the exporter knows it by its name
def strided_conv(x: Float[Array, "B T C"], kernel: Float[Array, "K C D"], stride: int) -> Float[Array, "B S D"]:
    """Convolution without padding, y[t] = Σ_k x[stride·t + k] W[k], computed as matrix products.

    XLA's convolutions and their gradients are several times slower on CPUs. Blocks of `stride` frames
    are the rows of a matrix. The function multiplies each block with the taps that cover it, and adds the products of
    consecutive blocks. If an output frame has at most `FEW` input values, as with samples, they are concatenated before
    one product, which writes the much larger output only once.

    Args:
        kernel: Taps, by input and output channels.

    Returns:
        Output frames, S = (T - K) // stride + 1.
    """
    size, width = kernel.shape[0], x.shape[-1]
    frames = (x.shape[1] - size) // stride + 1
    spanned = -(-size // stride)
    needed = (frames + spanned - 1) * stride
    missing = max(needed - x.shape[1], 0) if is_static(needed) else spanned * stride  # enough for all sizes
    x = jnp.pad(x[:, :needed], ((0, 0), (0, missing), (0, 0)))[:, :needed]
    blocks = x.reshape(x.shape[0], -1, stride * width)
    if size * width <= FEW:
        seen = jnp.concatenate([blocks[:, number : number + frames] for number in range(spanned)], axis=-1)
        return project(seen[..., : size * width], kernel.reshape(size * width, -1))
    y: Any = 0.0
    for number in range(spanned):
        taps = kernel[number * stride : (number + 1) * stride].reshape(-1, kernel.shape[-1])
        y += project(blocks[..., : len(taps)], taps)[:, number : number + frames]
    return y
