"""Zipformer's changes of frame rate: convolutional embedding, downsampling by a learned average, upsampling."""

import operator
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.shapes import DimSize, first_frames
from asr_jax.kernels.depthwise_conv.api import depthwise_conv_2d
from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
from asr_jax.kernels.swoosh.api import swoosh_l, swoosh_r
from asr_jax.nn.cache import Extend, unextended
from asr_jax.nn.convolution import Conv3x3
from asr_jax.nn.linear import Linear, per_channel, uniform
from asr_jax.nn.normalization import BiasNorm
from asr_jax.nn.schedules import Step, over_training
from asr_jax.nn.stochastic import Regulariser, kept_of_rows, scheduled_dropout

SKIP_CONVNEXT = over_training(0.2, 0.015)
NEIGHBOURS = 3
"""Frames on each side that the ConvNeXt block reads."""
FEWEST_FRAMES = 9
"""Least number of input frames of the embedding, from which it computes one frame."""


def embedding_length(num_frames: Any) -> Any:
    """Number of frames of the embedding for n frames of features: (n - 7) // 2, and 0 if n is less than 9."""
    return (num_frames - 7) // 2 * (num_frames >= FEWEST_FRAMES)


class ConvEmbedding(nn.Module):
    """Convolutional embedding, which halves the frame rate.

    It consists of three 3×3 convolutions over time and frequency, a ConvNeXt block, a projection and a norm.

    Source: `Conv2dSubsampling` in icefall's zipformer/subsampling.py. Differs from: in icefall, padding changes the
    last three frames of a row; here this happens only without `mask_padding`.
    """

    features: int
    channels: tuple[int, int, int]
    dropout: tuple[float, float]
    """Dropout rate at the start and after 20000 batches."""
    mask_padding: bool = True
    """Whether frames beyond a row's length are set to 0 before the ConvNeXt block."""
    regularise: bool = True
    skip: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T F"], lengths: Int[Array, " B"], *, step: Step, extend: Extend = unextended
    ) -> Float[Array, "B S D"]:
        """Embeds frames of features.

        Args:
            lengths: Length of each row in frames.
            extend: Function that puts `NEIGHBOURS` frames of former windows before those of the ConvNeXt block.

        Returns:
            Frames of the embedding, S = `embedding_length(T)`; `NEIGHBOURS` less for windows of streams.

        Raises:
            ValueError: If T is less than `FEWEST_FRAMES`.
        """
        if x.shape[1] < FEWEST_FRAMES:
            raise ValueError(
                f"the embedding needs batches of at least {FEWEST_FRAMES} frames, got {x.shape[1]}: pad the batch"
            )
        regularise = Regulariser.of(self, step=step, use=self.regularise)
        (first, second, third), num_frames = self.channels, x.shape[1]
        x = Conv3x3(first, pads=((0, 0), (1, 1)), name="conv_0")(x[..., None].astype(self.dtype))
        x = regularise.scale(x, 0.2)
        x = swoosh_r(regularise.balance(x, max_abs=1.0, mask=self._mask(lengths - 2, x)))
        x = Conv3x3(second, (2, 2), name="conv_1")(x)
        x = swoosh_r(regularise.balance(x, max_abs=4.0, mask=self._mask((lengths - 3) // 2, x)))
        x = first_frames(Conv3x3(third, (1, 2), name="conv_2")(x), embedding_length(num_frames))
        regularise.mask = mask = self._mask(embedding_length(lengths), x)
        x = swoosh_r(regularise.balance(x, max_abs=4.0))
        x = ConvNeXt(self.skip, self.dtype, name="convnext")(x, mask, step=step, regularise=regularise, extend=extend)
        x = Linear(self.features, dtype=self.dtype, name="out")(x.reshape(*x.shape[:2], -1))
        x = regularise.whiten(x, limit=over_training(4.0, 8.0), grad_scale=0.02)
        x = BiasNorm(name="norm")(x, regularise=regularise)
        return scheduled_dropout(x, self, rates=self.dropout, step=step)

    def _mask(self, lengths: Array, x: Array) -> Array | None:
        return length_mask(lengths, x.shape[1]) if self.mask_padding else None


class ConvNeXt(nn.Module):
    """ConvNeXt block over [B T F C]: x + project(Swoosh-L(expand(depthwise 7×7(x)))).

    The first and the last frames of whole rows have zeros beside them. In a window of a stream, the first ones have
    frames of the former windows beside them, and the last three have no output, since their neighbours are not known.

    Source: `ConvNeXt` in icefall's egs/librispeech/ASR/zipformer/subsampling.py.
    """

    skip: bool = True
    """Whether random rows skip the block in training."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T F C"],
        mask: Any,
        *,
        step: Step,
        regularise: Regulariser,
        extend: Extend = unextended,
    ) -> Float[Array, "B S F C"]:
        channels, num_frames = x.shape[-1], x.shape[1]
        kernel = self.param("kernel", uniform(1 / 7), (7, 7, channels))
        bias = self.param("bias", uniform(1 / 7), (channels,))
        valid = x if mask is None else x * mask[:, :, None, None].astype(x.dtype)
        valid = extend(valid)
        known = valid.shape[1] - num_frames
        x = x[:, : num_frames - known]
        side = NEIGHBOURS - known
        y = depthwise_conv_2d(valid, kernel, padding=((side, side), (3, 3))) + per_channel(bias, x)
        y = Linear(3 * channels, dtype=self.dtype, name="expand")(y)
        y = swoosh_l(regularise.balance(y, min_positive=0.3, max_positive=1.0, min_abs=0.75, max_abs=5.0))
        y = Linear(channels, 0.01, dtype=self.dtype, name="project")(y)
        if step is not None and self.skip:
            y *= kept_of_rows(self.make_rng("dropout"), SKIP_CONVNEXT(step), (len(x), 1, 1, 1)).astype(y.dtype)
        y = regularise.balance(x + y, min_positive=0.4, max_positive=0.6, min_abs=1.0, max_abs=6.0)
        return regularise.whiten(y, limit=5.0)


class Downsample(nn.Module):
    """Downsamples by averaging groups of `factor` frames with learned weights.

    The last frame is repeated to fill the last group.

    Source: `SimpleDownsample` in icefall's egs/librispeech/ASR/zipformer/zipformer.py. Differs from: icefall repeats
    the last frame of the padded batch. With `mask_padding`, the last valid frame of each row is repeated.
    """

    factor: int
    mask_padding: bool = True
    """Whether the last valid frame of each row is repeated, instead of the last frame of the padded batch."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B S D"]:
        logits = self.param("logits", nn.initializers.zeros, (self.factor,))
        if self.mask_padding and self.factor == 2:  # equal on valid frames
            return pairwise_downsample(x, logits, lengths)
        if self.mask_padding:
            x = repeat_last(x, lengths)
        num_groups = -(-x.shape[1] // self.factor)
        more = (x.shape[0], num_groups * self.factor - x.shape[1], x.shape[2])
        x = jnp.concatenate([x, jnp.broadcast_to(x[:, -1:], more)], axis=1)
        groups = x.reshape(x.shape[0], num_groups, self.factor, x.shape[-1])
        weights = jax.nn.softmax(logits).astype(x.dtype)
        return reduce(operator.add, [groups[:, :, i] * weights[i] for i in range(self.factor)])


def repeat_last(x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B T D"]:
    """Replaces frames beyond each row's length with its last valid frame, or with its first one if none is valid."""
    last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)
    return jnp.where(length_mask(lengths, x.shape[1])[:, :, None], x, last)


def upsample(x: Float[Array, "B S D"], *, factor: int, num_frames: DimSize) -> Float[Array, "B T D"]:
    """Upsamples by repeating each frame `factor` times.

    Args:
        factor: Number of output frames per input frame.
        num_frames: Number of output frames, to which the result is truncated.
    """
    return jnp.repeat(x, factor, axis=1)[:, :num_frames]
