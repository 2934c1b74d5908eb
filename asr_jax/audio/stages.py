"""Stages of a front-end that follow the logarithm: normalisation, range limits, stacking and padding."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from asr_jax.audio.ramp import Ramp
from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.errors import UserError
from asr_jax.core.paths import at_home
from asr_jax.core.settings import Finite, PositiveFloat, PositiveInt, settings
from asr_jax.core.shapes import numbers
from asr_jax.core.text_files import TextError, read_text

ALL = Ramp((1.0,), (1.0,))
"""Share of `NormaliseByDataSet`: always 1."""
DECADES = 8.0
"""Range of `LimitRange` below the maximum."""
MULTIPLE = 16
"""Divisor of the padded length that `RoundUp` produces, in frames."""


@settings
class Stage:
    """A transformation of frames.

    Padding frames are not read; the front-end replaces their values after the last stage.
    """

    reads_all: ClassVar[bool] = False
    """Whether each output frame depends on all frames of the utterance, so that streams cannot have this stage."""

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

    def num_settled(self, num_frames: int) -> int:
        """Returns the number of output frames that are known if the first `num_frames` input frames are."""
        return num_frames

    def run_up(self, num_frames: int) -> int:
        """Returns the number of first output frames that depend on the first `num_frames` input frames."""
        return num_frames

    def misfits(self, num_features: int) -> Iterator[str]:
        """Yields a message if the stage does not accept frames of `num_features` values."""
        yield from ()

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        """Transforms frames.

        Args:
            frames: Frames with their lengths.
            step: Number of updates applied so far in training; None in evaluation.
        """
        raise NotImplementedError


@settings
class Normalise(Stage):
    """Normalises each utterance to mean 0 and standard deviation 1 over its valid frames."""

    reads_all: ClassVar[bool] = True

    over: Literal["bins", "all"] = "bins"
    """Scope of the statistics. bins: each bin has its own; all: one mean and deviation of all values."""
    divisor: Literal["sum", "maximum", "root", "unbiased_root"] = "sum"
    """Number that values are divided by. sum: unbiased standard deviation plus eps (NeMo, NVIDIA's QuartzNet); maximum:
    biased standard deviation, but at least eps (CAIMAN-ASR, the Rust trainer); root: square root of biased variance
    plus eps (wav2vec 2.0, Squeezeformer); unbiased_root: square root of unbiased variance plus eps (W2V-BERT)."""
    eps: PositiveFloat = 1e-5
    """Small number that keeps the division finite."""

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
        fewer = self.divisor in ("sum", "unbiased_root")
        variance = squares / jnp.maximum(count - fewer, 1.0)  # The variance of a single frame is 0.
        if self.divisor in ("root", "unbiased_root"):
            return mean, jnp.sqrt(variance + self.eps)
        deviation = jnp.sqrt(variance)
        return mean, deviation + self.eps if self.divisor == "sum" else jnp.maximum(deviation, self.eps)


@settings
class NormaliseByDataSet(Stage):
    """Subtracts the mean of a data set and divides by its standard deviation, bin by bin.

    In training the result can be a weighted mean of this and of normalisation by the utterance's own statistics, as in
    Myrtle's RNN-T recipe. In evaluation the share of the data set's statistics is always 1.
    """

    mean: tuple[Finite, ...] = ()
    """Mean of each bin."""
    deviation: tuple[PositiveFloat, ...] = ()
    """Standard deviation of each bin."""
    share: Ramp = ALL
    """Share of the data set's statistics in training, from 0 to 1."""

    def problems(self) -> Iterator[str]:
        if len(self.mean) != len(self.deviation):
            yield f"{len(self.mean)} means and {len(self.deviation)} deviations: expected one of each per bin"
        if len(self.share.first) != 1 or not all(0 <= value <= 1 for value in self.share.first + self.share.last):
            yield f"share is {self.share}: expected one value from 0 to 1 in first and in last"

    def misfits(self, num_features: int) -> Iterator[str]:
        if len(self.mean) != num_features:
            yield (
                f"statistics of {len(self.mean)} bins cannot normalise frames of {num_features} values: compute the "
                "statistics of this front-end's features"
            )

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        by_data = (frames.values - jnp.asarray(self.mean)[None, None]) / jnp.asarray(self.deviation)[None, None]
        if step is None or self.share == ALL:
            return frames.replace(values=by_data)
        (share,) = self.share.at(step)
        by_utterance = Normalise(divisor="maximum")(frames, step=step).values
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
            text = read_text(at_home(str(path)))
        except (OSError, TextError) as error:
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
    def of_json(cls, path: str | Path, *, share: Ramp = ALL) -> "NormaliseByDataSet":
        """Reads the statistics that `python -m asr_jax.feature_statistics` writes: {"mean": […], "deviation": […]}.

        Raises:
            UserError: If the file cannot be read or has other content.
        """
        try:
            found = json.loads(read_text(at_home(str(path))))
            return cls(mean=tuple(found["mean"]), deviation=tuple(found["deviation"]), share=share)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f'{path}: {error}; expected {{"mean": […], "deviation": […]}}') from error


@settings
class LimitRange(Stage):
    """Limits base-10 logarithms to a range below the utterance's maximum, then computes (x + 4) / 4, as Whisper does.

    Values more than 8 below the maximum are raised to it minus 8.
    """

    reads_all: ClassVar[bool] = True

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        mask = length_mask(frames.lengths, frames.values.shape[1])[..., None]
        greatest = jnp.max(jnp.where(mask, frames.values, -jnp.inf), axis=(1, 2), keepdims=True, initial=-jnp.inf)
        return frames.replace(values=(jnp.maximum(frames.values, greatest - DECADES) + 4.0) / 4.0)


@settings
class Stack(Stage):
    """Stacks `num` successive frames into one frame, every `every` frames."""

    num: PositiveInt = 3
    """Number of input frames that are stacked into an output frame."""
    every: PositiveInt = 3
    """Distance between the first input frames of two output frames."""
    ends: Literal["zeros", "copies", "dropped"] = "zeros"
    """Treatment of the last frames if fewer than `num` are left. zeros: zeros are appended; copies (FunASR's low frame
    rate): copies of the last frame are appended, and (num - 1) // 2 copies of the first frame are inserted before it;
    dropped: they are removed."""

    def problems(self) -> Iterator[str]:
        if self.every > self.num:
            yield f"every is {self.every}: expected at most num, {self.num}"

    def num_features(self, before: int) -> int:
        return before * self.num

    @property
    def stride(self) -> int:
        return self.every

    def output_length(self, num_frames: Any) -> Any:
        if self.ends == "dropped":
            whole = (num_frames - self.num) // self.every + 1
            return whole * (whole > 0)
        return -(-num_frames // self.every)

    @property
    def _num_before(self) -> int:
        """Number of copies of the first frame before it."""
        return (self.num - 1) // 2 if self.ends == "copies" else 0

    def num_settled(self, num_frames: int) -> int:
        return max((num_frames + self._num_before - self.num) // self.every + 1, 0)

    def run_up(self, num_frames: int) -> int:
        return -(-(num_frames + self._num_before) // self.every)

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        values, lengths = frames.values, frames.lengths
        num_frames = values.shape[1]
        num_after = self.output_length(num_frames)
        place = self.every * numbers(0, num_after)[:, None] + np.arange(self.num)[None] - self._num_before
        inside = jnp.clip(place[None], 0, jnp.maximum(lengths, 1)[:, None, None] - 1)
        joined = jnp.take_along_axis(values, inside.reshape(values.shape[0], num_after * self.num, 1), axis=1)
        if self.ends == "zeros":
            is_there = jnp.asarray(place)[None] < lengths[:, None, None]
            joined = jnp.where(is_there.reshape(values.shape[0], num_after * self.num, 1), joined, 0.0)
        joined = joined.reshape(values.shape[0], num_after, self.num * values.shape[2])
        return Frames(joined, self.output_length(lengths))


@settings
class RoundUp(Stage):
    """Pads the time axis to a multiple of 16 frames; lengths do not change."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        more = -frames.values.shape[1] % MULTIPLE
        return frames.replace(values=jnp.pad(frames.values, ((0, 0), (0, more), (0, 0))))
