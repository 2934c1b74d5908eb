"""Stages of a front-end that follow the logarithm: normalisation, range limits, stacking and padding."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.errors import UserError


def risen(step: Int[Array, ""], begin_updates: int, ramp_updates: int) -> Float[Array, ""]:
    """Returns the progress of a linear ramp: 0 before it, 1 after it.

    Args:
        step: Number of updates applied so far.
        begin_updates: Number of updates before the ramp begins.
    """
    return jnp.clip((step + 1 - begin_updates) / max(ramp_updates, 1), 0.0, 1.0)


@dataclass(frozen=True)
class Stage:
    """A transformation of frames.

    Padding frames are not read; the front-end replaces their values after the last stage.
    """

    def num_features(self, before: int) -> int:
        """Returns the number of values per output frame for `before` values per input frame."""
        return before

    @property
    def stride(self) -> int:
        """Number of input frames per output frame."""
        return 1

    def output_length(self, num_frames: Any) -> Any:
        """Returns the number of output frames for `num_frames` input frames; accepts ints and arrays."""
        return num_frames

    def check(self, num_features: int) -> None:
        """Checks the number of values per input frame.

        Raises:
            ValueError: If the stage does not accept frames of `num_features` values.
        """

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        """Transforms frames.

        Args:
            frames: Frames with their lengths.
            step: Number of updates applied so far in training; None in evaluation.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Normalise(Stage):
    """Normalises each utterance to mean 0 and standard deviation 1 over its valid frames."""

    over: Literal["bins", "all"] = "bins"
    """Scope of the statistics. bins: each bin has its own; all: one mean and deviation of all values."""
    ddof: int = 1
    """Delta degrees of freedom of the standard deviation: 1 unbiased, 0 biased."""
    eps: float = 1e-5
    """Small number that keeps the division finite; see `eps_to`."""
    eps_to: Literal["deviation", "variance", "least"] = "deviation"
    """Use of `eps`. deviation: it is added to the standard deviation; variance: it is added to the variance; least: it
    is the minimum standard deviation."""

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof is {self.ddof}: expected 0 or 1")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}: expected more than 0")

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        mean, deviation = self.statistics(frames)
        return frames.replace(values=(frames.values - mean) / deviation)

    def statistics(self, frames: Frames) -> tuple[Float[Array, "B 1 D"], Float[Array, "B 1 D"]]:
        """Returns the mean to subtract and the deviation to divide by; D is 1 if `over` is all."""
        num_frames, num_bins = frames.values.shape[1:]
        mask = length_mask(frames.lengths, num_frames)[..., None]
        axes, each = ((1,), 1) if self.over == "bins" else ((1, 2), num_bins)
        count = (frames.lengths * each).astype(jnp.float32)[:, None, None]
        mean = jnp.where(mask, frames.values, 0.0).sum(axes, keepdims=True) / jnp.maximum(count, 1.0)
        squares = jnp.where(mask, jnp.square(frames.values - mean), 0.0).sum(axes, keepdims=True)
        variance = squares / jnp.maximum(count - self.ddof, 1.0)  # The variance of a single frame is 0.
        if self.eps_to == "variance":
            return mean, jnp.sqrt(variance + self.eps)
        deviation = jnp.sqrt(variance)
        return mean, deviation + self.eps if self.eps_to == "deviation" else jnp.maximum(deviation, self.eps)


@dataclass(frozen=True)
class NormaliseByDataSet(Stage):
    """Subtracts the mean of a data set and divides by its standard deviation, bin by bin.

    In training the result can be a weighted mean of this and of normalisation by the utterance's own statistics; the
    share of the data set's statistics rises from `begin_share` to 1, as in Myrtle's RNN-T recipe. In evaluation the
    share is always 1.
    """

    mean: tuple[float, ...] = ()
    """Mean of each bin."""
    deviation: tuple[float, ...] = ()
    """Standard deviation of each bin."""
    begin_updates: int = 0
    """Number of updates before the share of the data set's statistics begins to rise."""
    ramp_updates: int = 0
    """Number of updates in which the share rises to 1. 0: it is 1 after `begin_updates`."""
    begin_share: float = 1.0
    """Share of the data set's statistics before it rises, from 0 to 1."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation):
            raise ValueError(
                f"{len(self.mean)} means and {len(self.deviation)} deviations: expected one of each per bin"
            )
        if not all(np.isfinite(self.mean)) or not all(0 < value < float("inf") for value in self.deviation):
            raise ValueError("expected finite means, and finite deviations above 0")
        if min(self.begin_updates, self.ramp_updates) < 0 or not 0 <= self.begin_share <= 1:
            raise ValueError(
                f"begin_updates {self.begin_updates}, ramp_updates {self.ramp_updates}, begin_share "
                f"{self.begin_share}: expected updates of 0 or more, and a share from 0 to 1"
            )

    def check(self, num_features: int) -> None:
        if len(self.mean) != num_features:
            raise ValueError(
                f"statistics of {len(self.mean)} bins cannot normalise frames of {num_features} values: compute the "
                "statistics of this front-end's features"
            )

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        by_data = (frames.values - jnp.asarray(self.mean)[None, None]) / jnp.asarray(self.deviation)[None, None]
        if step is None or (self.begin_share == 1):
            return frames.replace(values=by_data)
        share = self.begin_share + (1 - self.begin_share) * risen(step, self.begin_updates, self.ramp_updates)
        by_utterance = Normalise(ddof=0, eps=1e-5, eps_to="least")(frames, step=step).values
        return frames.replace(values=share * by_data + (1 - share) * by_utterance)

    @classmethod
    def of_kaldi(cls, path: str | Path) -> "NormaliseByDataSet":
        """Reads the statistics in a Kaldi network's text file (FunASR's am.mvn).

        <AddShift> contains the values to add (the negative means), <Rescale> the factors (the reciprocals of the
        deviations).

        Raises:
            UserError: If the file cannot be read or does not have as many values of <AddShift> as of <Rescale>.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: {error}; expected a text file with <AddShift> and <Rescale>") from error
        found = [re.search(rf"<{name}>[^\[]*\[([^\]]*)\]", text) for name in ("AddShift", "Rescale")]
        shift, scale = ([float(value) for value in part[1].split()] if part else [] for part in found)
        if not shift or len(shift) != len(scale) or not all(scale):
            raise UserError(
                f"{path}: {len(shift)} values of <AddShift> and {len(scale)} of <Rescale>; expected equal numbers of "
                "both, at least one, and no <Rescale> of 0"
            )
        return cls(mean=tuple(-value for value in shift), deviation=tuple(1 / value for value in scale))

    @classmethod
    def of_json(cls, path: str | Path, **ramp: Any) -> "NormaliseByDataSet":
        """Reads the statistics that `python -m asr_jax.feature_statistics` writes: {"mean": […], "deviation": […]}.

        Args:
            **ramp: Other fields of the result: `begin_updates`, `ramp_updates` and `begin_share`.

        Raises:
            UserError: If the file cannot be read or has other content.
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            return cls(mean=tuple(found["mean"]), deviation=tuple(found["deviation"]), **ramp)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f'{path}: {error}; expected {{"mean": […], "deviation": […]}}') from error


@dataclass(frozen=True)
class LimitRange(Stage):
    """Limits base-10 logarithms to a range below the utterance's maximum, then computes (x + 4) / 4, as Whisper does.

    Lower values are raised to the maximum minus `decades`.
    """

    decades: float = 8.0
    """Range below the maximum in decades."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        mask = length_mask(frames.lengths, frames.values.shape[1])[..., None]
        greatest = jnp.max(jnp.where(mask, frames.values, -jnp.inf), axis=(1, 2), keepdims=True, initial=-jnp.inf)
        return frames.replace(values=(jnp.maximum(frames.values, greatest - self.decades) + 4.0) / 4.0)


@dataclass(frozen=True)
class Stack(Stage):
    """Stacks `num` successive frames into one frame, every `every` frames."""

    num: int = 3
    """Number of input frames that are stacked into an output frame."""
    every: int = 3
    """Distance between the first input frames of two output frames."""
    before: int = 0
    """Number of copies of the first frame inserted before it: (num - 1) // 2 for FunASR's low frame rate."""
    at_end: Literal["zeros", "last", "dropped"] = "zeros"
    """Treatment of the last frames if fewer than `num` are left. zeros: zeros are appended; last: copies of the last
    frame are appended; dropped: they are removed."""

    def __post_init__(self) -> None:
        if not 1 <= self.every <= self.num or self.before < 0:
            raise ValueError(
                f"num {self.num}, every {self.every}, before {self.before}: expected 1 <= every <= num, and before >= 0"
            )

    def num_features(self, before: int) -> int:
        return before * self.num

    @property
    def stride(self) -> int:
        return self.every

    def output_length(self, num_frames: Any) -> Any:
        if self.at_end == "dropped":
            whole = (num_frames + self.before - self.num) // self.every + 1
            return whole * (whole > 0)
        return -(-num_frames // self.every)

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        values, lengths = frames.values, frames.lengths
        num_frames = values.shape[1]
        num_after = self.output_length(num_frames)
        place = self.every * np.arange(num_after)[:, None] + np.arange(self.num)[None] - self.before
        inside = jnp.clip(place[None], 0, jnp.maximum(lengths, 1)[:, None, None] - 1)
        joined = jnp.take_along_axis(values, inside.reshape(len(values), num_after * self.num, 1), axis=1)
        if self.at_end == "zeros":
            is_there = jnp.asarray(place)[None] < lengths[:, None, None]
            joined = jnp.where(is_there.reshape(len(values), num_after * self.num, 1), joined, 0.0)
        joined = joined.reshape(len(values), num_after, self.num * values.shape[2])
        return Frames(joined, self.output_length(lengths))


@dataclass(frozen=True)
class RoundUp(Stage):
    """Pads the time axis to a multiple of `frames`; lengths do not change."""

    frames: int = 16
    """Number of frames of which the padded length is a multiple."""

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames is {self.frames}: expected at least 1")

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        more = -frames.values.shape[1] % self.frames
        return frames.replace(values=jnp.pad(frames.values, ((0, 0), (0, more), (0, 0))))
