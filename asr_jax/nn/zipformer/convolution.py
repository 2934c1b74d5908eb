"""Zipformer's convolution module and its depthwise convolutions over time."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.masking.api import mask_time
from asr_jax.kernels.swoosh.api import swoosh_r
from asr_jax.nn.linear import Linear, per_channel, uniform
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import over_training, piecewise_linear
from asr_jax.nn.stochastic import Regulariser, whitening_limit


class DepthwiseConv(nn.Module):
    """Depthwise convolution over time with symmetric padding, which keeps the number of frames."""

    kernel_size: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        bound = self.kernel_size**-0.5
        kernel = self.param("kernel", uniform(bound), (self.kernel_size, x.shape[-1]))
        bias = self.param("bias", uniform(bound), x.shape[-1:])
        side = self.kernel_size // 2
        return saved(depthwise_conv(x, kernel, padding=(side, side))) + per_channel(bias, x)


class ChunkDepthwiseConv(nn.Module):
    """Depthwise convolution for streaming, whose right context ends with the chunk of the frame.

    The output is the sum of a causal convolution with half of the taps and of a symmetric convolution within the chunk.
    The latter is multiplied by a learned scale of the distance from the ends of the chunk.

    Source: `ChunkCausalDepthwiseConv1d` in icefall's zipformer/scaling.py. Differs from: in icefall the last chunk ends
    with the padded batch if the batch is shorter; here this requires `ends_at_batch`.
    """

    kernel_size: int
    chunk_frames: int | None
    """Length of a chunk in frames. None: each row is one chunk, which ends at the row's length."""
    ends_at_batch: bool = False
    """Whether the last chunk ends at the end of the padded batch, as in icefall."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
        size, width, num_frames = self.kernel_size, x.shape[-1], x.shape[1]
        half, side = (size + 1) // 2, size // 2
        causal_kernel = self.param("causal_kernel", uniform(half**-0.5), (half, width))
        causal_bias = self.param("causal_bias", uniform(0.1), (width,))
        kernel = self.param("kernel", uniform(size**-0.5), (size, width))
        bias = self.param("bias", uniform(size**-0.5), (width,))
        edges = self.param("edges", nn.initializers.zeros, (2, size, width))

        causal = saved(depthwise_conv(x, causal_kernel, padding=(half - 1, 0))) + per_channel(causal_bias, x)
        chunk = num_frames if self.chunk_frames is None else self.chunk_frames
        chunk = min(chunk, num_frames) if self.ends_at_batch else chunk
        num_chunks = -(-num_frames // chunk)
        padded = jnp.pad(x, ((0, 0), (0, num_chunks * chunk - num_frames), (0, 0)))
        within = saved(depthwise_conv(padded.reshape(-1, chunk, width), kernel, padding=(side, side)))
        within = (within + per_channel(bias, x)).reshape(x.shape[0], -1, width)[:, :num_frames]

        position = jnp.arange(num_frames)[None] % chunk
        to_its_end = self.chunk_frames is None and not self.ends_at_batch
        ends = jnp.minimum(lengths, num_frames)[:, None] if to_its_end else jnp.full((1, 1), chunk)
        return causal + within * _edge_scale(edges, position, ends).astype(x.dtype)


def _edge_scale(
    edges: Float[Array, "2 K D"], position: Int[Array, "1 T"], ends: Int[Array, "C 1"]
) -> Float[Array, "C T D"]:
    """Returns 1 + the learned scales of the first K and of the last K frames of a chunk.

    `position` is the frame's index within its chunk, and `ends` is the length of the chunk.
    """
    size = edges.shape[1]
    nothing = jnp.zeros_like(edges[:, :1])
    left, right = jnp.concatenate([edges, nothing], axis=1)
    from_end = position - ends + size
    from_end = jnp.where((from_end >= 0) & (from_end < size), from_end, size)
    return 1.0 + left[jnp.minimum(position, size)] + right[from_end]


class ConvolutionModule(nn.Module):
    """Convolution module: projection, gated linear unit, depthwise convolution, Swoosh-R, projection.

    Padding does not change valid frames.

    Source: `ConvolutionModule` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.
    """

    kernel_size: int
    causal: bool = False
    chunk_frames: int | None = None
    ends_at_batch: bool = False
    """Whether the last chunk ends at the end of the padded batch. See `ChunkDepthwiseConv`."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, regularise: Regulariser
    ) -> Float[Array, "B T D"]:
        width = x.shape[-1]
        values, gate = jnp.split(Linear(2 * width, dtype=self.dtype, name="in")(x), 2, axis=-1)
        gate = regularise.balance(
            gate,
            min_positive=piecewise_linear((0, 0.05), (8000, 0.025)),
            max_positive=1.0,
            min_abs=1.5,
            max_abs=piecewise_linear((0, 5.0), (8000, 10.0)),
        )
        gated = mask_time(values * jax.nn.sigmoid(gate), lengths)
        if self.causal:
            conv = ChunkDepthwiseConv(self.kernel_size, self.chunk_frames, self.ends_at_batch, name="depthwise")
            hidden = conv(gated, lengths)
        else:
            hidden = DepthwiseConv(self.kernel_size, name="depthwise")(gated)
        hidden = regularise.balance(
            hidden,
            min_positive=piecewise_linear((0, 0.1), (8000, 0.05)),
            max_positive=1.0,
            min_abs=over_training(0.2, 0.5),
            max_abs=10.0,
        )
        hidden = regularise.whiten(hidden, limit=whitening_limit(7.5))
        return Linear(width, 0.05, dtype=self.dtype, name="out")(swoosh_r(hidden))
