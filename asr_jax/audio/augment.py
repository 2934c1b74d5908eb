"""Augmentation of features on the device, inside the training step, drawn anew for each row."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import Frames, length_mask


@dataclass(frozen=True)
class Augmentation:
    """Settings of an augmentation; calling it draws from `key` and changes values, never lengths."""

    def check(self, front_end: FrontEnd) -> None:
        """Raises: ValueError where the front-end's features are not those that the augmentation is made for."""

    def __call__(self, frames: Frames, key: PRNGKeyArray) -> Frames:
        raise NotImplementedError


@dataclass(frozen=True)
class SpecAugment(Augmentation):
    """Masks of mel bins and of frames, filled with the utterance's mean. The defaults are icefall's.

    Widths are uniform in [0, max], starts uniform over the valid frames. An utterance gets as many time masks of full
    width as fit into `max_time_share` of its frames, at least one, and then no wider than that share.

    Source: Park et al. 2019 (arXiv:1904.08779) without time warping; lhotse `dataset/signal_transforms.py` for the
    limit by share.
    """

    num_freq_masks: int = 2
    """Masks of mel bins per utterance."""
    max_freq_bins: int = 27
    """Widest mask of mel bins."""
    num_time_masks: int = 10
    """Most masks of frames per utterance."""
    max_time_frames: int = 100
    """Widest mask of frames."""
    max_time_share: float = 0.15
    """Most of an utterance's frames that time masks may cover in all."""
    probability: float = 0.9
    """Share of the utterances that are masked."""

    def __post_init__(self) -> None:
        if min(self.num_freq_masks, self.max_freq_bins, self.num_time_masks, self.max_time_frames) < 0:
            raise ValueError(f"counts and widths of masks must not be negative: {self}")
        if not 0 <= self.max_time_share <= 1 or not 0 <= self.probability <= 1:
            raise ValueError(
                f"max_time_share {self.max_time_share} and probability {self.probability}: expected within 0 and 1"
            )

    def __call__(self, frames: Frames, key: PRNGKeyArray) -> Frames:
        num_rows, num_frames, num_bins = frames.values.shape
        apply_key, time_key, freq_key = jax.random.split(key, 3)
        lengths = frames.lengths.astype(jnp.float32)
        budget = jnp.floor(self.max_time_share * lengths)
        num_masks = jnp.minimum(jnp.ceil(budget / max(self.max_time_frames, 1)), self.num_time_masks)
        widest = jnp.minimum(jnp.floor(budget / jnp.maximum(num_masks, 1)), self.max_time_frames)
        active = jnp.arange(self.num_time_masks)[None] < num_masks[:, None]
        masked = _spans(time_key, active, widest, lengths, num_frames)[:, :, None]
        full = jnp.ones((num_rows, self.num_freq_masks), bool)
        bins = jnp.full(num_rows, float(num_bins))
        widest_bins = jnp.full(num_rows, float(min(self.max_freq_bins, num_bins)))
        masked = masked | _spans(freq_key, full, widest_bins, bins, num_bins)[:, None, :]
        masked = masked & jax.random.bernoulli(apply_key, self.probability, (num_rows, 1, 1))
        valid = length_mask(frames.lengths, num_frames)[..., None]
        mean = jnp.sum(jnp.where(valid, frames.values, 0.0), axis=(1, 2)) / jnp.maximum(lengths * num_bins, 1.0)
        return frames.replace(values=jnp.where(masked & valid, mean[:, None, None], frames.values))


def _spans(
    key: PRNGKeyArray, active: Bool[Array, "B N"], widest: Float[Array, " B"], lengths: Float[Array, " B"], size: int
) -> Bool[Array, "B size"]:
    """The union of N spans per row, each of a uniform whole width up to `widest`, anywhere within `lengths`."""
    width_key, start_key = jax.random.split(key)
    widths = jnp.floor(jax.random.uniform(width_key, active.shape) * (widest[:, None] + 1))
    starts = jnp.floor(jax.random.uniform(start_key, active.shape) * (lengths[:, None] - widths + 1))
    position = jnp.arange(size)[None, None]
    inside = (position >= starts[..., None]) & (position < (starts + widths)[..., None]) & active[..., None]
    return jnp.any(inside, axis=1)


@dataclass(frozen=True)
class VocalTract(Augmentation):
    """Stretches the frequency axis of each utterance, as if its speaker's vocal tract were shorter or longer.

    Bin m takes the (interpolated) energy of the frequency that lies `factor` times higher, the factor uniform in
    [1 − max_warp, 1 + max_warp]; beyond the last bin the last one is repeated.

    Source: Jaitly and Hinton 2013, "Vocal Tract Length Perturbation (VTLP) improves speech recognition".
    Differs from: the warp acts on log-mel bins instead of the bank's edges, and has no separate upper segment.
    """

    max_warp: float = 0.1
    """Largest relative change of frequency."""
    probability: float = 1.0
    """Share of the utterances that are warped."""
    low_hz: float = 20.0
    """Lower edge of the mel bank that the features come from."""
    high_hz: float = 7600.0
    """Upper edge of the mel bank that the features come from."""

    def check(self, front_end: FrontEnd) -> None:
        if front_end.band_hz != (self.low_hz, self.high_hz):
            raise ValueError(
                f"VocalTract's mel bank is of (low_hz, high_hz) {(self.low_hz, self.high_hz)}, the front-end's of "
                f"{front_end.band_hz}: set both alike"
            )

    def __post_init__(self) -> None:
        if not 0 <= self.max_warp < 1 or not 0 <= self.probability <= 1:
            raise ValueError(f"max_warp {self.max_warp} and probability {self.probability}: expected within 0 and 1")

    def __call__(self, frames: Frames, key: PRNGKeyArray) -> Frames:
        num_rows, _, num_bins = frames.values.shape
        apply_key, factor_key = jax.random.split(key)
        factor = 1 + self.max_warp * jax.random.uniform(factor_key, (num_rows,), minval=-1.0)
        factor = jnp.where(jax.random.bernoulli(apply_key, self.probability, (num_rows,)), factor, 1.0)
        first = _mel(self.low_hz)
        spacing = (_mel(self.high_hz) - first) / (num_bins + 1)
        centres_hz = 700 * jnp.expm1((first + spacing * jnp.arange(1, num_bins + 1)) / 1127)
        source = (_mel(factor[:, None] * centres_hz[None]) - first) / spacing - 1
        source = jnp.clip(source, 0, num_bins - 1)
        weights = jnp.maximum(1 - jnp.abs(source[:, None, :] - jnp.arange(num_bins)[None, :, None]), 0.0)
        return frames.replace(values=jnp.einsum("btf,bfm->btm", frames.values, weights))


def _mel(hz: Any) -> Any:
    return 1127 * jnp.log1p(hz / 700)
