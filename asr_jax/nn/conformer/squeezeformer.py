"""Parts of Squeezeformer: scales and biases of channels, and the reduction and recovery of the frame rate.

Source: Kim et al. 2022, "Squeezeformer" (arXiv:2206.00888), figure 2; kssteven418/Squeezeformer src/models at commit
ab49eec5; NVIDIA/NeMo nemo/collections/asr at commit 8cfedd72.
"""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.shapes import is_static
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.masking.api import mask_time
from asr_jax.nn.linear import Linear, per_channel, uniform

Variant = Literal["paper", "nemo", "rust"]


class Details(NamedTuple):
    """Differences of the published implementations that are not settings of the encoder."""

    frames_before: int
    """Zero frames and bins before the input of each subsampling convolution. One follows the input."""
    masks: bool
    """Whether the subsampling always sets frames beyond a row's length to 0."""
    reduction_size: int
    """Taps of the convolution that halves the frame rate."""
    reduction_before: int
    """Zero frames before the input of that convolution."""
    eps: float
    """Epsilon of all norms."""
    momentum: float
    """Weight of a batch in the running statistics."""
    ddof: int
    """Delta degrees of freedom of the running variances."""
    blind: Literal["mean", "zeros"]
    """Attention output for queries whose keys are all masked. See `RelativeAttention`."""


DETAILS: dict[Variant, Details] = {
    "paper": Details(0, False, 5, 0, eps=1e-3, momentum=0.015, ddof=0, blind="mean"),
    "nemo": Details(1, True, 5, 3, eps=1e-5, momentum=0.1, ddof=1, blind="zeros"),
    "rust": Details(0, False, 3, 0, eps=1e-5, momentum=0.1, ddof=0, blind="mean"),
}


def peer_lengths(lengths: Any, factor: int) -> Any:
    """Lengths that the paper's code masks with: n // 2 + 1 for each halving, up to two more than the number of frames.

    Args:
        lengths: Length of each row in frames of features.
        factor: Subsampling factor, a power of 2.
    """
    while factor > 1:
        lengths, factor = lengths // 2 + 1, factor // 2
    return lengths


class ScaleBias(nn.Module):
    """Learned scale and bias of each channel, x · scale + bias, which replace a norm before a module."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return x * per_channel(scale, x) + per_channel(bias, x)


class ReduceTime(nn.Module):
    """Halves the frame rate with a depthwise convolution of stride 2 and a pointwise convolution: S = ⌈T / 2⌉.

    Source: `TimeReductionLayer` of the paper's code, `TimeReductionModule` of NeMo. Differs from: if the padded batch
    has an odd number of frames, the paper's code replaces the last output frame with zeros; here this happens only
    without `mask_padding`.
    """

    details: Details
    mask_padding: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B S D"]:
        num_frames, width = x.shape[1:]
        size, before = self.details.reduction_size, self.details.reduction_before
        initial = uniform(size**-0.5)
        kernel, bias = self.param("kernel", initial, (size, width)), self.param("bias", initial, (width,))
        x = mask_time(x, lengths)
        is_odd = 2 * -(-num_frames // 2) - num_frames
        zero_frame = is_odd if before == 0 and not self.mask_padding else 0
        behind = size - 2 - before
        if is_static(num_frames):
            behind += is_odd - zero_frame
        else:  # convolutions have static padding
            x = jnp.pad(x, ((0, 0), (0, is_odd), (0, 0)))
        y = depthwise_conv(x, kernel, padding=(before, behind), stride=2)
        y = Linear(width, dtype=self.dtype, name="pointwise")(y + per_channel(bias, y))
        if is_static(num_frames):
            return jnp.pad(y, ((0, 0), (0, zero_frame), (0, 0)))
        return jnp.where((jnp.arange(y.shape[1]) < y.shape[1] - zero_frame)[None, :, None], y, 0)


class RecoverTime(nn.Module):
    """Duplicates each frame in order, projects the frames, and adds them to the frames before the reduction."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"], before: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        repeated = jnp.repeat(x, 2, axis=1)[:, : before.shape[1]]
        return before + Linear(x.shape[-1], dtype=self.dtype, name="project")(repeated)
