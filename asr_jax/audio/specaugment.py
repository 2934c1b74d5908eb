"""Augmentation of frames: frequency and time masks, masked rectangles, and warping of the time or frequency axis."""

from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.audio.augmentation import Augmentation, Drawn, Lengths, Rows, Sounds, descending
from asr_jax.audio.features import FrontEnd
from asr_jax.core.settings import NonNegativeInt, PositiveInt, Share, ShareBelow1, settings


@settings
class SpecAugment(Augmentation):
    """Masks mel bins and frames of an utterance (SpecAugment).

    The defaults are icefall's, except that time masks are within the utterance; icefall's are anywhere in the padded
    row. The methods `quartznet`, `rnnt`, `nemo` and `rust` return the settings of other systems.

    Widths are uniform integers, and starts are uniform over the frames. If `max_time_share` is s < 1, an utterance of T
    frames has n = min(ceil(s·T / max_time_frames), num_time_masks) time masks of at most floor(s·T / n) frames each.

    Source: Park et al. 2019 (arXiv:1904.08779) without time warping; lhotse `dataset/signal_transforms.py` for
    `max_time_share`; Park et al. 2019 (arXiv:1912.05533) for widths that adapt to the length.
    """

    probability = 0.9
    num_freq_masks: NonNegativeInt = 2
    """Number of frequency masks per utterance."""
    max_freq_bins: NonNegativeInt = 27
    """Maximum width of a frequency mask in mel bins."""
    num_time_masks: NonNegativeInt = 10
    """Maximum number of time masks per utterance."""
    max_time_frames: NonNegativeInt = 100
    """Maximum width of a time mask in frames."""
    max_width_share: Share = 1.0
    """Maximum width of a time mask as a fraction of the utterance's frames."""
    max_time_share: Share = 0.15
    """Maximum fraction of the utterance's frames that all time masks cover together. 1: no limit."""
    system: Literal["icefall", "nemo", "quartznet", "rnnt", "rust"] = "icefall"
    """System whose masks these are.

    - Value of masked bins and frames: the utterance's mean in icefall; 0, which is neutral only for normalised
      features, in the others.
    - Range of time masks: the padded row in quartznet and rnnt, the utterance in the others.
    - Widths: below the maximum in icefall and nemo, up to the maximum in the others; at least 1 in rust.
    - Ends: in rnnt and rust a mask can end at the last frame or bin; in the others at least one remains behind it.
    """

    @classmethod
    def quartznet(cls, *, max_freq_bins: int = 15, max_time_frames: int = 55) -> "SpecAugment":
        """Returns the settings of NVIDIA's QuartzNet: masks anywhere in the padded row, filled with 0."""
        return cls(
            probability=1.0,
            max_freq_bins=max_freq_bins,
            num_time_masks=2,
            max_time_frames=max_time_frames,
            max_time_share=1.0,
            system="quartznet",
        )

    @classmethod
    def rnnt(cls) -> "SpecAugment":
        """Returns the settings of Myrtle's RNN-T.

        It has ten time masks of up to 3 % of the frames each, anywhere in the padded row.
        """
        return cls(
            probability=1.0,
            max_freq_bins=20,
            max_time_frames=100_000,
            max_width_share=0.03,
            max_time_share=1.0,
            system="rnnt",
        )

    @classmethod
    def nemo(cls, *, num_time_masks: int = 10, max_width_share: float = 0.05) -> "SpecAugment":
        """Returns the settings of NVIDIA's NeMo for Conformer and FastConformer.

        Widths of time masks adapt to the length, and masks are filled with 0.
        """
        return cls(
            probability=1.0,
            num_time_masks=num_time_masks,
            max_time_frames=100_000,
            max_width_share=max_width_share,
            max_time_share=1.0,
            system="nemo",
        )

    @classmethod
    def rust(
        cls, *, num_time_masks: int, max_time_frames: int, num_freq_masks: int, max_freq_bins: int
    ) -> "SpecAugment":
        """Returns the settings of the Rust trainer.

        Masks are at least one frame or bin wide, within the utterance, and filled with 0.

        Args:
            num_time_masks: Number of time masks per utterance.
            max_time_frames: Maximum width of a time mask in frames.
            num_freq_masks: Number of frequency masks per utterance.
            max_freq_bins: Maximum width of a frequency mask in mel bins.
        """
        return cls(
            probability=1.0,
            num_freq_masks=num_freq_masks,
            max_freq_bins=max_freq_bins,
            num_time_masks=num_time_masks,
            max_time_frames=max_time_frames,
            max_time_share=1.0,
            system="rust",
        )

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        num_frames, num_bins = size
        of_time, of_freq = jax.random.split(key)
        frames = length.astype(jnp.float32)
        widest = jnp.minimum(self.max_time_frames, self.max_width_share * frames)
        widest = jnp.floor(widest) if self._draws_widest else widest
        active = jnp.full(self.num_time_masks, True)
        if self.max_time_share < 1:
            budget = self.max_time_share * frames
            num = jnp.minimum(jnp.ceil(budget / max(self.max_time_frames, 1)), self.num_time_masks)
            widest = jnp.minimum(jnp.floor(budget / jnp.maximum(num, 1)), widest)
            active = jnp.arange(self.num_time_masks) < num
        room = jnp.float32(num_frames) if self.system in ("quartznet", "rnnt") else frames
        time_starts, time_widths = self._spans(of_time, jnp.minimum(widest, room), room, active)
        bins = jnp.float32(min(self.max_freq_bins, num_bins))
        active = jnp.full(self.num_freq_masks, True)
        freq_starts, freq_widths = self._spans(of_freq, bins, jnp.float32(num_bins), active)
        return {
            "time_starts": time_starts,
            "time_widths": time_widths,
            "freq_starts": freq_starts,
            "freq_widths": freq_widths,
        }

    @property
    def _draws_widest(self) -> bool:
        return self.system not in ("icefall", "nemo")

    def _spans(
        self, key: PRNGKeyArray, widest: Float[Array, ""], room: Float[Array, ""], active: Bool[Array, " N"]
    ) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
        """Draws starts and widths of spans within `room` positions; spans that are not active have width 0."""
        of_width, of_start = jax.random.split(key)
        least = jnp.minimum(self.system == "rust", widest)
        choices = widest - least + self._draws_widest
        widths = jnp.floor(least + choices * jax.random.uniform(of_width, active.shape)) * active
        behind = room - widths + (self.system in ("rnnt", "rust"))
        starts = jax.random.uniform(of_start, active.shape) * jnp.maximum(behind, 1)
        return jnp.floor(starts).astype(jnp.int32), widths.astype(jnp.int32)

    def apply(self, row: Float[Array, "T F"], length: Int[Array, ""], drawn: Drawn) -> Float[Array, "T F"]:
        num_frames, num_bins = row.shape
        masked = _inside(num_frames, drawn["time_starts"], drawn["time_widths"])[:, None]
        masked = masked | _inside(num_bins, drawn["freq_starts"], drawn["freq_widths"])[None]
        if self.system != "icefall":
            return jnp.where(masked, 0.0, row)
        valid = (jnp.arange(num_frames) < length)[:, None]
        return jnp.where(masked & valid, _mean(row, length), row)


@settings
class Cutout(Augmentation):
    """Sets rectangles of mel bins and frames to 0, which is neutral only for normalised features.

    They can be anywhere in the padded row. It is applied before or after SpecAugment according to the order of the
    augmentations.

    Source: DeVries and Taylor 2017 (arXiv:1708.04552); the defaults are NVIDIA's QuartzNet's, with masks.
    """

    num: NonNegativeInt = 5
    """Number of rectangles per utterance."""
    freq_bins: tuple[NonNegativeInt, NonNegativeInt] = (20, 20)
    """Minimum and maximum height of a rectangle in mel bins."""
    time_frames: tuple[NonNegativeInt, NonNegativeInt] = (5, 5)
    """Minimum and maximum width of a rectangle in frames."""

    def problems(self) -> Iterator[str]:
        yield from descending(freq_bins=self.freq_bins, time_frames=self.time_frames)

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        num_frames, num_bins = size
        keys, shape = jax.random.split(key, 4), (self.num,)
        heights = jax.random.randint(keys[0], shape, self.freq_bins[0], self.freq_bins[1] + 1)
        widths = jax.random.randint(keys[1], shape, self.time_frames[0], self.time_frames[1] + 1)
        return {
            "freq_starts": jax.random.randint(keys[2], shape, 0, jnp.maximum(num_bins - heights, 1)),
            "freq_widths": heights,
            "time_starts": jax.random.randint(keys[3], shape, 0, jnp.maximum(num_frames - widths, 1)),
            "time_widths": widths,
        }

    def apply(self, row: Float[Array, "T F"], length: Int[Array, ""], drawn: Drawn) -> Float[Array, "T F"]:
        num_frames, num_bins = row.shape
        in_time = _each_inside(num_frames, drawn["time_starts"], drawn["time_widths"])
        in_freq = _each_inside(num_bins, drawn["freq_starts"], drawn["freq_widths"])
        return jnp.where(jnp.any(in_time[:, :, None] & in_freq[:, None], axis=0), 0.0, row)


@settings
class TimeWarp(Augmentation):
    """Moves one frame of the utterance in time, and stretches or compresses the frames on each side of it.

    Frames are interpolated linearly; the length does not change.

    Source: Park et al. 2019 (arXiv:1904.08779), section 2. Differs from: the paper, which interpolates by a thin plate
    spline.
    """

    moves_frames = True
    probability = 0.9
    max_frames: PositiveInt = 80
    """Maximum distance in frames. Utterances of at most twice as many frames are not changed."""

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        of_centre, of_move = jax.random.split(key)
        is_long = length > 2 * self.max_frames
        centre = jax.random.randint(
            of_centre, (), self.max_frames, jnp.maximum(length - self.max_frames, self.max_frames + 1)
        )
        move = jax.random.randint(of_move, (), -self.max_frames + 1, self.max_frames)
        return {"centre": centre, "move": jnp.where(is_long, move, 0)}

    def apply(self, row: Float[Array, "T F"], length: Int[Array, ""], drawn: Drawn) -> Float[Array, "T F"]:
        centre, last = drawn["centre"].astype(jnp.float32), jnp.maximum(length - 1, 1).astype(jnp.float32)
        moved = jnp.clip(centre + drawn["move"], 1.0, jnp.maximum(last - 1, 1.0))
        frame = jnp.arange(len(row)).astype(jnp.float32)
        before = frame * centre / moved
        after = centre + (frame - moved) * (last - centre) / jnp.maximum(last - moved, 1.0)
        source = jnp.where(frame <= moved, before, after)
        source = jnp.where((frame < length) & (drawn["move"] != 0), jnp.clip(source, 0.0, last), frame)
        below = jnp.clip(jnp.floor(source).astype(jnp.int32), 0, len(row) - 1)
        above = jnp.minimum(below + 1, len(row) - 1)
        part = (source - below)[:, None]
        return jnp.where(part > 0, row[below] * (1 - part) + row[above] * part, row[below])


@settings
class VocalTract(Augmentation):
    """Warps the frequency axis of an utterance, which simulates a shorter or longer vocal tract.

    Bin m becomes the interpolated energy at `factor` times its centre frequency. The factor is uniform in
    [1 − max_warp, 1 + max_warp]. Beyond the last bin the last one is repeated.

    Source: Jaitly and Hinton 2013, "Vocal Tract Length Perturbation (VTLP) improves speech recognition".
    Differs from: the paper, which warps the edges of the mel filter bank instead of log-mel bins, and has a separate
    upper segment.
    """

    max_warp: ShareBelow1 = 0.1
    """Maximum relative change of frequency."""

    def check(self, front_end: FrontEnd) -> None:
        super().check(front_end)
        if front_end.bins == "slaney":
            raise ValueError(
                "VocalTract requires bins on Kaldi's or HTK's mel scale, but the front-end's bins are on Slaney's"
            )

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        return {"factor": 1 + self.max_warp * jax.random.uniform(key, minval=-1.0)}

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        num_bins = values.shape[2]
        first, last = (_mel(jnp.float32(hz)) for hz in front_end.band_hz)
        spacing = (last - first) / (num_bins + 1)
        centres_hz = 700 * jnp.expm1((first + spacing * jnp.arange(1, num_bins + 1)) / 1127)

        def warped(row: Array, drawn: Drawn) -> Array:
            source = (_mel(drawn["factor"] * centres_hz) - first) / spacing - 1
            source = jnp.clip(source, 0, num_bins - 1)
            weights = jnp.maximum(1 - jnp.abs(source[None] - jnp.arange(num_bins)[:, None]), 0.0)
            return jnp.where(drawn["applied"], jnp.matmul(row, weights), row)

        return jax.vmap(warped)(values, drawn)


def _mean(row: Float[Array, "T F"], length: Int[Array, ""]) -> Float[Array, ""]:
    """Returns the mean of all values of the valid frames."""
    valid = (jnp.arange(row.shape[0]) < length)[:, None]
    return jnp.sum(jnp.where(valid, row, 0.0)) / jnp.maximum(length * row.shape[1], 1)


def _inside(size: int, starts: Int[Array, " N"], widths: Int[Array, " N"]) -> Bool[Array, " size"]:
    """Returns True for positions within any of the spans."""
    return jnp.any(_each_inside(size, starts, widths), axis=0)


def _each_inside(size: int, starts: Int[Array, " N"], widths: Int[Array, " N"]) -> Bool[Array, "N size"]:
    place = jnp.arange(size)[None]
    return (place >= starts[:, None]) & (place < (starts + widths)[:, None])


def _mel(hz: Float[Array, "..."]) -> Float[Array, "..."]:
    return 1127 * jnp.log1p(hz / 700)
