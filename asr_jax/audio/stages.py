"""What a front-end does to its frames after the logarithm: normalise, stack, round up."""

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
    """0 in the first `begin_updates` updates, then rising to 1 in `ramp_updates` of them. `step`: updates applied."""
    return jnp.clip((step + 1 - begin_updates) / max(ramp_updates, 1), 0.0, 1.0)


@dataclass(frozen=True)
class Stage:
    """Frames to frames. What lies beyond a row's length is not read, and what is left there the front-end replaces."""

    def num_features(self, before: int) -> int:
        """Values per frame, from those before."""
        return before

    @property
    def stride(self) -> int:
        """Frames before for each frame after."""
        return 1

    def output_length(self, num_frames: Any) -> Any:
        """Frames from frames, for ints and arrays."""
        return num_frames

    def check(self, num_features: int) -> None:
        """Raises: ValueError where frames of that size cannot come in."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        """`step`: updates applied so far in training, None in evaluation."""
        raise NotImplementedError


@dataclass(frozen=True)
class Normalise(Stage):
    """Mean 0 and standard deviation 1 over the valid frames of each utterance."""

    over: Literal["bins", "all"] = "bins"
    """Statistics of each bin, or one of all values."""
    ddof: int = 1
    """What is taken from the number of values that the variance is divided by: 1 unbiased, 0 biased."""
    eps: float = 1e-5
    """Keeps the division finite."""
    eps_to: Literal["deviation", "variance", "least"] = "deviation"
    """`eps` is added to the standard deviation, or to the variance, or is the least standard deviation."""

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof is {self.ddof}: expected 0 or 1")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}: expected more than 0")

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        mean, deviation = self.statistics(frames)
        return frames.replace(values=(frames.values - mean) / deviation)

    def statistics(self, frames: Frames) -> tuple[Float[Array, "B 1 D"], Float[Array, "B 1 D"]]:
        """What is subtracted, and what is divided by; D is 1 where they are over all values."""
        num_frames, num_bins = frames.values.shape[1:]
        mask = length_mask(frames.lengths, num_frames)[..., None]
        axes, each = ((1,), 1) if self.over == "bins" else ((1, 2), num_bins)
        count = (frames.lengths * each).astype(jnp.float32)[:, None, None]
        mean = jnp.where(mask, frames.values, 0.0).sum(axes, keepdims=True) / jnp.maximum(count, 1.0)
        squares = jnp.where(mask, jnp.square(frames.values - mean), 0.0).sum(axes, keepdims=True)
        variance = squares / jnp.maximum(count - self.ddof, 1.0)  # of a single frame: 0
        if self.eps_to == "variance":
            return mean, jnp.sqrt(variance + self.eps)
        deviation = jnp.sqrt(variance)
        return mean, deviation + self.eps if self.eps_to == "deviation" else jnp.maximum(deviation, self.eps)


@dataclass(frozen=True)
class NormaliseByDataSet(Stage):
    """Subtracts the mean of a data set and divides by its standard deviation, bin by bin.

    In training the share of this in the result can rise from 0 to 1, the rest being normalised by the utterance itself,
    as Myrtle's RNN-T recipe does it. In evaluation the share is always 1.
    """

    mean: tuple[float, ...] = ()
    """Of each bin."""
    deviation: tuple[float, ...] = ()
    """Of each bin."""
    begin_updates: int = 0
    """Updates before the share begins to rise."""
    ramp_updates: int = 0
    """Updates in which it rises to 1; 0: it is 1 from there on."""
    begin_share: float = 1.0
    """The share before it rises."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means and {len(self.deviation)} deviations: expected one each of a bin")
        if not all(np.isfinite(self.mean)) or not all(0 < value < float("inf") for value in self.deviation):
            raise ValueError("expected finite means, and deviations above 0")
        if min(self.begin_updates, self.ramp_updates) < 0 or not 0 <= self.begin_share <= 1:
            raise ValueError(
                f"begin_updates {self.begin_updates}, ramp_updates {self.ramp_updates}, begin_share "
                f"{self.begin_share}: expected 0 or more, and a share within 0 and 1"
            )

    def check(self, num_features: int) -> None:
        if len(self.mean) != num_features:
            raise ValueError(f"statistics of {len(self.mean)} bins for frames of {num_features}: set both alike")

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        by_data = (frames.values - jnp.asarray(self.mean)[None, None]) / jnp.asarray(self.deviation)[None, None]
        if step is None or (self.begin_share == 1):
            return frames.replace(values=by_data)
        share = self.begin_share + (1 - self.begin_share) * risen(step, self.begin_updates, self.ramp_updates)
        by_utterance = Normalise(ddof=0, eps=1e-5, eps_to="least")(frames, step=step).values
        return frames.replace(values=share * by_data + (1 - share) * by_utterance)

    @classmethod
    def of_kaldi(cls, path: str | Path) -> "NormaliseByDataSet":
        """Statistics of a Kaldi network's text file (FunASR's am.mvn): what is added, and then multiplied.

        Raises: UserError where the file has no <AddShift> and <Rescale>.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: {error}; expected a text file with <AddShift> and <Rescale>") from error
        found = [re.search(rf"<{name}>[^\[]*\[([^\]]*)\]", text) for name in ("AddShift", "Rescale")]
        shift, scale = ([float(value) for value in part[1].split()] if part else [] for part in found)
        if not shift or len(shift) != len(scale) or not all(scale):
            raise UserError(
                f"{path}: {len(shift)} values of <AddShift> and {len(scale)} of <Rescale>; expected as many"
            )
        return cls(mean=tuple(-value for value in shift), deviation=tuple(1 / value for value in scale))

    @classmethod
    def of_json(cls, path: str | Path, **ramp: Any) -> "NormaliseByDataSet":
        """Statistics that `python -m asr_jax.feature_statistics` wrote: {"mean": […], "deviation": […]}.

        Raises: UserError where the file is another.
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            return cls(mean=tuple(found["mean"]), deviation=tuple(found["deviation"]), **ramp)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f'{path}: {error}; expected {{"mean": […], "deviation": […]}}') from error


@dataclass(frozen=True)
class LimitRange(Stage):
    """Logarithms (base 10) that lie more than `decades` below the utterance's greatest are raised to that; then
    (x + 4) / 4, as Whisper has it.
    """

    decades: float = 8.0
    """The range."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        mask = length_mask(frames.lengths, frames.values.shape[1])[..., None]
        greatest = jnp.max(jnp.where(mask, frames.values, -jnp.inf), axis=(1, 2), keepdims=True, initial=-jnp.inf)
        return frames.replace(values=(jnp.maximum(frames.values, greatest - self.decades) + 4.0) / 4.0)


@dataclass(frozen=True)
class Stack(Stage):
    """Each `stride` frames become one that holds `num` successive ones."""

    num: int = 3
    """Frames that are joined."""
    every: int = 3
    """Frames from one result to the next."""
    before: int = 0
    """Copies of the first frame that are put before it: (num - 1) // 2 for low frame rate as FunASR."""
    at_end: Literal["zeros", "last", "dropped"] = "zeros"
    """What is joined to the last frames where too few are left: zeros, copies of the last frame, or nothing: they are
    dropped."""

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
    """More padding, to a multiple of `frames`: lengths stay as they are."""

    frames: int = 16
    """The multiple."""

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames is {self.frames}: expected at least 1")

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Frames:
        more = -frames.values.shape[1] % self.frames
        return frames.replace(values=jnp.pad(frames.values, ((0, 0), (0, more), (0, 0))))
