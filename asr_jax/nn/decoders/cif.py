"""Continuous integrate-and-fire (CIF): weights of frames, integrated to one vector for each label.

Source: Dong and Xu 2020, "CIF: Continuous Integrate-and-Fire for End-to-End Speech Recognition" (arXiv:1905.11235);
FunASR's funasr/models/paraformer/cif_predictor.py at commit 3c58cb56.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Frames, length_mask, zero_padding
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, ShareBelow1, settings
from asr_jax.core.shapes import DimSize
from asr_jax.nn.linear import Linear, uniform
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

NEAR_THE_END = 1e-3
"""Distance from the number of labels within which the integral counts as complete in training, where its last value
equals that number except for rounding."""
BEGIN = 0.1
"""Share of a label's integral at which its time begins. The frames of a pause before it have smaller weights."""


@settings
class CIF:
    """Settings of the predictor of weights. The defaults are FunASR's `CifPredictorV2`."""

    kind: Literal["full", "depthwise"] = "full"
    """Convolution before the weights. full: all channels (`CifPredictorV2`). depthwise: each channel by itself, with a
    residual connection (`CifPredictor`)."""
    before: NonNegativeInt = 1
    """Number of frames before a frame that the convolution reads (FunASR's l_order)."""
    after: NonNegativeInt = 1
    """Number of frames after a frame that the convolution reads (FunASR's r_order)."""
    smooth_factor: PositiveFloat = 1.0
    """Factor of the weights."""
    noise_threshold: NonNegativeFloat = 0.0
    """Number that is subtracted from the weights, of which negative ones are then set to 0."""
    tail: ShareBelow1 = 0.45
    """Weight of a frame of zeros after the last one in recognition: a last label fires if its integral reaches 1 minus
    this. 0: no such frame; the number of labels is then rounded."""
    dropout: ShareBelow1 = 0.1
    """Dropout rate after the convolution with kind `depthwise`; `full` has no dropout, as in FunASR."""


class Fired(NamedTuple):
    """Result of the integration."""

    shares: Float[Array, "B U T"]
    """Weight of each frame in the vector of each label; 0 for labels that are not completed."""
    is_fire: Bool[Array, "B T"]
    """Frames in which the integral of a label is completed."""
    starts: Int[Array, "B U"]
    """First frame of each label, which is not before the end of the previous label. A frame in which a label is
    completed belongs to that label."""
    ends: Int[Array, "B U"]
    """Frame after the last frame of each label. Labels that are not completed end after all frames."""


def integrate(weights: Float[Array, "B T"], *, size: DimSize, num_labels: Float[Array, " B"] | None = None) -> Fired:
    """Integrates weights over time. Each time that the integral reaches a whole number, the next label begins.

    A frame completes at most one label: with weights above 1, the label has all integrals that end in it. The integral
    is a cumulative sum, so that the labels of all frames are found at once; gradients are those of FunASR's
    `cif_v1`.

    Args:
        weights: Weight of each frame, at least 0; 0 in the padding.
        size: Number U of labels of the result. Further labels are left out.
        num_labels: Sums that the weights were scaled to. Rounding then does not decide whether the last label fires.
    """
    level = jnp.cumsum(weights, axis=1)
    whole = jnp.floor(jax.lax.stop_gradient(level))
    if num_labels is not None:
        end = num_labels[:, None]
        whole = jnp.where(level > end - NEAR_THE_END, end, jnp.minimum(whole, end - 1))
    is_fire = whole > jnp.pad(whole[:, :-1], ((0, 0), (1, 0)))
    rest = jnp.where(is_fire, level - whole, 0.0)
    fired = jnp.cumsum(is_fire, axis=1)
    label = jnp.arange(size)[None, :, None]
    own, following = (fired - is_fire)[:, None] == label, is_fire[:, None] & (fired[:, None] == label)
    shares = jnp.where(own, (weights - rest)[:, None], 0.0) + jnp.where(following, rest[:, None], 0.0)
    shares = jnp.where(label < fired[:, -1:, None], shares, 0.0)  # the last label may be incomplete
    place = jnp.arange(weights.shape[1])[None, None]
    ends = jnp.max(jnp.where(own & is_fire[:, None], place + 1, 0), axis=2)
    ends = jnp.where(ends > 0, ends, weights.shape[1])
    begun = jnp.cumsum(jax.lax.stop_gradient(shares), axis=2) >= BEGIN
    starts = jnp.maximum(jnp.argmax(begun, axis=2), jnp.pad(ends[:, :-1], ((0, 0), (1, 0))))
    starts = jnp.minimum(starts, jnp.maximum(ends - 1, 0))
    return Fired(shares, is_fire, starts.astype(jnp.int32), ends.astype(jnp.int32))


class Predictor(nn.Module):
    """Module of `CIF`: weights of frames, and the integration of frames to labels."""

    settings: CIF

    def setup(self) -> None:
        settings = self.settings
        self.convolution = _Convolution(settings.kind, settings.before, settings.after)
        self.dropout = Dropout(settings.dropout)
        self.output = Linear(1)

    def __call__(self, frames: Frames, *, step: Step) -> Float[Array, "B T"]:
        """Returns the weights of frames, float32; 0 in the padding."""
        x = frames.values.astype(jnp.float32)
        y = self.convolution(x)
        if self.settings.kind == "depthwise":
            y = self.dropout(y + x, step=step)
        weights = nn.sigmoid(self.output(nn.relu(y))[..., 0])
        weights = nn.relu(weights * self.settings.smooth_factor - self.settings.noise_threshold)
        return jnp.where(length_mask(frames.lengths, x.shape[1]), weights, 0.0)

    @nn.nowrap
    def of_labels(
        self, frames: Frames, weights: Float[Array, "B T"], num_labels: Int[Array, " B"], *, size: int
    ) -> tuple[Float[Array, "B U D"], Fired]:
        """Returns the vectors of a known number of labels, to which the sum of the weights is scaled.

        Args:
            weights: Result of `__call__`.
            num_labels: Number of labels of each row.
            size: Number U of labels of the result.
        """
        number = num_labels.astype(jnp.float32)
        total = jnp.sum(weights, axis=1)
        scaled = weights * (number / jnp.where(total > 0, total, 1.0))[:, None]
        fired = integrate(scaled, size=size, num_labels=number)
        return combined(fired, frames.values), fired

    @nn.nowrap
    def found(
        self, frames: Frames, weights: Float[Array, "B T"]
    ) -> tuple[Float[Array, "B U D"], Int[Array, " B"], Fired]:
        """Returns the vectors of labels, their number, and the integration, whose frames include the tail.

        The tail is the frame after the last one of a row. Its vector is that of the padding, which must be zeros. A
        label of the tail takes the last frame from the label before it.

        Args:
            weights: Result of `__call__`.
        """
        tail, size = self.settings.tail, weights.shape[1] + 1
        values = jnp.pad(frames.values, ((0, 0), (0, 1), (0, 0)))
        is_tail = jnp.arange(size)[None] == frames.lengths[:, None]
        weights = jnp.pad(weights, ((0, 0), (0, 1))) + jnp.where(is_tail, tail, 0.0)
        total = jnp.sum(weights, axis=1)
        number = jnp.floor(total) if tail else jnp.round(total)
        number = jnp.where(jnp.isfinite(total), number, 1).astype(jnp.int32)  # one label, whose score is not finite
        fired = integrate(weights, size=size)
        end = jnp.maximum(frames.lengths, 1)[:, None]
        starts = jnp.minimum(fired.starts, end - 1)
        is_followed = jnp.arange(1, size + 1)[None] < number[:, None]
        following = jnp.where(is_followed, jnp.concatenate([starts[:, 1:], end], axis=1), end)
        fired = fired._replace(starts=starts, ends=jnp.minimum(fired.ends, following))
        return combined(fired, values), number, fired


def combined(fired: Fired, values: Float[Array, "B T D"]) -> Float[Array, "B U D"]:
    """Returns the vector of each label, float32: the sum of the frames weighted with their shares."""
    return jnp.einsum("but,btd->bud", fired.shares, values.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


class _Convolution(nn.Module):
    """Convolution over time that keeps the number of frames and of channels, in float32."""

    kind: Literal["full", "depthwise"]
    before: int
    after: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        taps, width = self.before + self.after + 1, x.shape[-1]
        inputs = 1 if self.kind == "depthwise" else width
        initial = uniform((taps * inputs) ** -0.5)
        kernel = self.param("kernel", initial, (taps, inputs, width))
        bias = self.param("bias", initial, (width,))
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            (1,),
            ((self.before, self.after),),
            dimension_numbers=("NTC", "TIO", "NTC"),
            feature_group_count=width // inputs,
        )
        return y + bias[None, None]


def quantity_losses(weights: Float[Array, "B T"], num_labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """Returns the absolute difference of the sum of the weights and the number of labels, for each row."""
    return jnp.abs(jnp.sum(weights, axis=1) - num_labels)


def without_padding(frames: Frames) -> Frames:
    """Returns frames whose padding is 0."""
    return frames.replace(values=zero_padding(frames.values, frames.lengths))
