"""Zipformer's convolution module and its depthwise convolutions over time."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.shapes import DimSize, first_frames
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.masking.api import mask_time
from asr_jax.kernels.swoosh.api import swoosh_r
from asr_jax.nn.attention import of_context
from asr_jax.nn.cache import Extend, unextended
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
    chunks: tuple[int | None, ...]
    """Length of a chunk in frames, for each context. None: each row is one chunk, which ends at the row's length."""
    ends_at_batch: bool = False
    """Whether the last chunk ends at the end of the padded batch, as in icefall."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        *,
        context: Int[Array, ""] | None = None,
        extend: Extend = unextended,
    ) -> Float[Array, "B T D"]:
        """Applies the convolutions.

        Args:
            lengths: Length of each row in frames.
            context: Index of the context that was drawn. None: the first one.
            extend: Function that puts `kernel_size // 2` frames of former windows before those of `x`.
        """
        size, width, num_frames = self.kernel_size, x.shape[-1], x.shape[1]
        half = (size + 1) // 2
        causal_kernel = self.param("causal_kernel", uniform(half**-0.5), (half, width))
        causal_bias = self.param("causal_bias", uniform(0.1), (width,))
        kernel = self.param("kernel", uniform(size**-0.5), (size, width))
        bias = self.param("bias", uniform(size**-0.5), (width,))
        edges = self.param("edges", nn.initializers.zeros, (2, size, width))

        extended = extend(x)
        before = half - 1 - (extended.shape[1] - num_frames)
        causal = saved(depthwise_conv(extended, causal_kernel, padding=(before, 0))) + per_channel(causal_bias, x)
        of_rows = [chunk is None and not self.ends_at_batch for chunk in self.chunks]
        chunks = [num_frames if chunk is None else chunk for chunk in self.chunks]
        chunks = [jax.core.min_dim(chunk, num_frames) for chunk in chunks] if self.ends_at_batch else chunks
        chunk = of_context(chunks, context)
        if isinstance(chunk, jax.Array):
            within = conv_within_chunks(x, kernel, chunk, shortest=min(chunks))
        else:
            within = conv_within_equal_chunks(x, kernel, chunk)
        within = saved(within) + per_channel(bias, x)

        position, ends = jnp.arange(num_frames)[None] % chunk, jnp.full((1, 1), chunk)
        if any(of_rows):
            ends = jnp.where(of_context(of_rows, context), jnp.minimum(lengths, num_frames)[:, None], ends)
        return causal + within * _edge_scale(edges, position, ends).astype(x.dtype)


def conv_within_equal_chunks(
    x: Float[Array, "B T D"], kernel: Float[Array, "K D"], chunk: DimSize
) -> Float[Array, "B T D"]:
    """Applies a symmetric depthwise convolution to each chunk by itself.

    Args:
        kernel: Filters with an odd number of taps.
        chunk: Length of a chunk in frames.
    """
    (rows, num_frames, width), side = x.shape, len(kernel) // 2
    num_chunks = -(-num_frames // chunk)
    padded = jnp.pad(x, ((0, 0), (0, num_chunks * chunk - num_frames), (0, 0)))
    y = depthwise_conv(padded.reshape(rows * num_chunks, chunk, width), kernel, padding=(side, side))
    return first_frames(y.reshape(rows, num_chunks * chunk, width), num_frames)


def conv_within_chunks(
    x: Float[Array, "B T D"], kernel: Float[Array, "K D"], chunk: Int[Array, ""], *, shortest: int
) -> Float[Array, "B T D"]:
    """Applies a symmetric depthwise convolution to each chunk by itself, with a length that is known only at run time.

    Every G-th chunk is convolved together, with zeros in place of the others. They do not meet, since G - 1 of the
    shortest chunks are at least as long as half of the filter. This computes G convolutions with masks instead of one,
    2 to 5 in published sizes. The alternative is a branch for each length: a GPU would wait for the host in each layer
    to choose the branch, and XLA would compile each of them for each bucket.

    Args:
        kernel: Filters with an odd number of taps.
        chunk: Length of a chunk in frames.
        shortest: Least value of `chunk`.
    """
    side = len(kernel) // 2
    groups = 1 + -(-side // shortest)
    group = jnp.arange(x.shape[1]) // chunk % groups
    own = (group[None] == jnp.arange(groups)[:, None]).astype(x.dtype)[None, :, :, None]
    parts = own * x[:, None]  # rows first, which may be on several devices
    y = depthwise_conv(parts.reshape(-1, *x.shape[1:]), kernel, padding=(side, side))
    return (own * y.reshape(parts.shape)).sum(axis=1)


def _edge_scale(
    edges: Float[Array, "2 K D"], position: Int[Array, "1 T"], ends: Int[Array, "C 1"]
) -> Float[Array, "C T D"]:
    """Returns 1 + the learned scales of the first K and of the last K frames of a chunk.

    `position` is the frame's index within its chunk, and `ends` is the length of the chunk.
    """
    size = edges.shape[1]
    # Products with 0 and 1, because the gradient of indexing would be a scatter over all frames.
    left, right = (jax.nn.one_hot(place, size, dtype=edges.dtype) for place in (position, position - ends + size))
    return 1.0 + left @ edges[0] + right @ edges[1]


class ConvolutionModule(nn.Module):
    """Convolution module: projection, gated linear unit, depthwise convolution, Swoosh-R, projection.

    Padding does not change valid frames.

    Source: `ConvolutionModule` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.
    """

    kernel_size: int
    causal: bool = False
    chunks: tuple[int | None, ...] = (None,)
    ends_at_batch: bool = False
    """Whether the last chunk ends at the end of the padded batch. See `ChunkDepthwiseConv`."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        *,
        regularise: Regulariser,
        context: Int[Array, ""] | None = None,
        extend: Extend = unextended,
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
            conv = ChunkDepthwiseConv(self.kernel_size, self.chunks, self.ends_at_batch, name="depthwise")
            hidden = conv(gated, lengths, context=context, extend=extend)
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
