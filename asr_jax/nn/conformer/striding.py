"""Strided convolutions: the subsampling of Conformer and Squeezeformer, and those of W2V-BERT's adapters."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import zero_padding
from asr_jax.kernels.glu.api import glu
from asr_jax.nn.cache import Cache
from asr_jax.nn.convolution import Conv3x3
from asr_jax.nn.linear import Linear, per_channel, project, uniform

Subsampling = Literal["striding", "dw_striding"]
"""Kind of subsampling.

striding: full convolutions. dw_striding: depthwise-separable convolutions (depthwise and then pointwise) from the
second one on.
"""


def strided_length(num_frames: Any, factor: int, *, before: int = 1) -> Any:
    """Number of output frames (or bins) of `Subsample`.

    Args:
        num_frames: Number of input frames; an int or an array.
        factor: Subsampling factor, a power of 2.
        before: Zero frames before the input of each convolution.
    """
    while factor > 1:
        num_frames, factor = (num_frames + before) // 2, factor // 2
    return num_frames


class Subsample(nn.Module):
    """Subsampling by log2(`factor`) 3×3 convolutions of stride 2 over time and frequency, each with a ReLU.

    With `mask_padding`, frames beyond a row's length are set to 0 before each convolution, and the result does not
    depend on padding.

    Source: `ConvSubsampling` in NeMo's nemo/collections/asr/parts/submodules/subsampling.py at commit 8cfedd72, which
    masks since 0fd4de53; `Conv2dSubsampling` in kssteven418/Squeezeformer at commit ab49eec5.
    """

    channels: int
    factor: int
    """Ratio of the input's to the output's frame rate. Must be a power of 2, at least 2."""
    kind: Subsampling = "striding"
    before: int = 1
    """Zero frames and bins before the input of each convolution. One follows the input."""
    mask_padding: bool = True
    """Whether frames beyond a row's length are set to 0 before each convolution."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T F"],
        lengths: Int[Array, " B"],
        *,
        cache: Cache | None = None,
        is_first: Bool[Array, " B"] | None = None,
    ) -> Float[Array, "B S E"]:
        """Subsamples frames and bins, whose numbers `strided_length` returns.

        A window of a stream has a multiple of `factor` frames, with `factor` - 1 frames before the first frame of the
        stream in the first window; `before` must be 2. From T frames of a window, T / `factor` are computed.

        Args:
            lengths: Length of each row in frames. That of a first window includes the frames before the stream.
            cache: Last input frame of each convolution, by its name. None: rows are whole.
            is_first: Whether the window is the first one of its stream. None: rows are whole.

        Returns:
            Output frames. The last axis has the channels of the first bin, then those of the second, and so on.
        """
        x = x.astype(self.dtype)[..., None]
        # With the frames before the stream, every convolution reads one frame of the window before, instead of two.
        before, pads = (self.before, (self.before, 1)) if is_first is None else (1, (0, 0))
        for number in range(self.factor.bit_length() - 1):
            x, name = self._masked(x, lengths), f"conv_{number}"
            if cache is not None and is_first is not None:
                x = cache.extend(name)(_without_first(x, (self.factor >> number) - 1, is_first))
            separable = number > 0 and self.kind == "dw_striding"
            x = Conv3x3(self.channels, (2, 2), (pads, (self.before, 1)), depthwise=separable, name=name)(x)
            if separable:
                x = Linear(self.channels, dtype=self.dtype, name=f"pointwise_{number}")(x)
            x, lengths = nn.relu(x), strided_length(lengths, 2, before=before)
        return self._masked(x, lengths).reshape(*x.shape[:2], -1)

    def _masked(self, x: Array, lengths: Array) -> Array:
        return zero_padding(x, lengths) if self.mask_padding else x


def initial_cache(
    num_rows: int, num_bins: int, channels: int, factor: int, *, dtype: DTypeLike
) -> dict[str, Float[Array, "B 1 F C"]]:
    """Returns the frames in the cache of `Subsample` before the first windows of `num_rows` streams.

    Args:
        num_rows: Number of streams.
        num_bins: Number of bins of the input.
        channels: As in `Subsample`.
        factor: As in `Subsample`.
        dtype: Data type that the module computes in.
    """
    cache, inputs = dict[str, Array](), 1
    for number in range(factor.bit_length() - 1):
        cache[f"conv_{number}"] = jnp.zeros((num_rows, 1, num_bins, inputs), dtype)
        num_bins, inputs = strided_length(num_bins, 2, before=2), channels
    return cache


def _without_first(x: Float[Array, "B T F C"], number: int, rows: Bool[Array, " B"]) -> Float[Array, "B T F C"]:
    """Returns `x` with the first `number` frames of some rows set to 0."""
    unused = rows[:, None] & (jnp.arange(x.shape[1]) < number)[None]
    return jnp.where(unused[:, :, None, None], 0, x)


def gated_length(num_frames: Any, kernel_size: int, stride: int, *, of_peer: bool = False) -> Any:
    """Number of frames of `GatedConv`'s output for the frames of an utterance.

    If the halves of kernel size and stride differ, this is the smaller one of the number of frames that the convolution
    gives for the utterance alone and the length that transformers computes for it.

    Args:
        num_frames: Number of input frames; an int or an array.
        kernel_size: Taps of the convolution.
        stride: Stride of the convolution in frames.
        of_peer: Whether to return the length that transformers computes and masks attention with, which may exceed the
            number of frames that exist.
    """
    half = kernel_size // 2 if of_peer else min(kernel_size // 2, stride // 2)
    return _windows(num_frames, kernel_size, stride, 2 * half)


def _windows(num_frames: Any, kernel_size: int, stride: int, zeros: int) -> Any:
    """Number of windows of a convolution over frames and zeros; at least 0, and 0 without frames."""
    found = (num_frames + zeros - kernel_size) // stride + 1
    return found * (found > 0) * (num_frames > 0)


class GatedConv(nn.Module):
    """Strided convolution over time with stride // 2 zero frames at both ends, and a gated linear unit.

    Source: `Wav2Vec2BertAdapterLayer` in transformers 5.23.
    """

    kernel_size: int
    stride: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S D"]:
        size, stride, width, num_frames = self.kernel_size, self.stride, x.shape[-1], x.shape[1]
        initial = uniform((size * width) ** -0.5)
        kernel = self.param("kernel", initial, (size, width, 2 * width)).astype(self.dtype)
        bias = self.param("bias", initial, (2 * width,))
        num = _windows(num_frames, size, stride, 2 * (stride // 2))
        if not num:
            raise ValueError(f"an adapter needs batches of at least {size} frames, got {num_frames}: pad the batch")
        behind = (num - 1) * stride + size - num_frames - stride // 2  # negative if the last frames are not used
        pads = ((0, 0, 0), (stride // 2, behind, 0), (0, 0, 0))
        x = jax.lax.pad(x.astype(self.dtype), jnp.zeros((), self.dtype), pads)
        # One product of matrices: XLA's convolutions and their gradients are several times slower on CPUs.
        seen = [x[:, tap : tap + (num - 1) * stride + 1 : stride] for tap in range(size)]
        y = project(jnp.concatenate(seen, axis=-1), kernel.reshape(-1, 2 * width))
        return glu(y + per_channel(bias, y))
