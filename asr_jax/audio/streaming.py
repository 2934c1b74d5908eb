"""Features of signals that arrive in pieces: windows of the frames that the front-end computes for whole signals.

Each window is computed by the front-end itself, from the samples of its frames and a few samples around them. The
front-end therefore has no state on the device; the samples that later windows need are kept on the host.
"""

import bisect
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import soxr
from jaxtyping import Array, Int, Int16, Shaped

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.mono import as_float, as_int16
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError

MOST_SAMPLES = 1 << 40
"""Upper limit of the search for the number of samples of a window."""


@dataclass(frozen=True)
class FeatureWindows:
    """Windows of frames. Window n begins at frame n · `shift` - `before`.

    A stream has all windows that begin before its end.

    Raises:
        UserError: If frames of the front-end depend on the whole signal.
    """

    front_end: FrontEnd
    size: int
    """Number of frames of a window."""
    shift: int
    """Distance in frames between the beginnings of two windows."""
    before: int = 0
    """Number of frames that the first window has before the first frame of the stream. Their values are undefined."""

    def __post_init__(self) -> None:
        if setting := self.front_end.reads_all:
            raise UserError(
                f"the front-end has {setting}, which reads a recording as a whole before its first frame is known, so "
                "the model cannot recognise a stream: train with NormaliseByDataSet, the statistics of the training "
                "data (python -m asr_jax.feature_statistics), in its place"
            )

    @cached_property
    def num_samples(self) -> int:
        """Number of samples that a window is computed from."""
        needed = self.front_end.run_up + self.size
        return bisect.bisect_left(range(MOST_SAMPLES), needed, key=self.front_end.num_settled)

    def __call__(self, samples: Shaped[Array, "B S"], lengths: Int[Array, " B"], skipped: Int[Array, " B"]) -> Frames:
        """Computes one window of each row.

        Args:
            samples: int16 or float samples of full scale 32768, S = `num_samples`, from `SampleBuffer.take`.
            lengths: Number of valid samples of each row. 0: the row has no window.
            skipped: Number of frames of each row before the window; negative if the window begins before the stream.

        Returns:
            Frames `[B, size, num_features]`, with the front-end's padding.
        """
        frames = self.front_end(samples, lengths)
        values = jnp.pad(frames.values, ((0, 0), (self.before, 0), (0, 0)))
        places = (skipped + self.before)[:, None, None] + jnp.arange(self.size)[None, :, None]
        lengths = jnp.where(lengths > 0, jnp.clip(frames.lengths - skipped, 0, self.size), 0)
        return Frames(jnp.take_along_axis(values, places, axis=1, mode="clip"), lengths)


class StreamResampler:
    """Resamples a stream by soxr (HQ), as files are resampled. The pieces do not change the result."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = None if from_hz == to_hz else soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")

    def __call__(self, samples: Int16[np.ndarray, " S"], *, is_last: bool = False) -> Int16[np.ndarray, " N"]:
        """Returns the samples at the new rate that are known after the given ones."""
        if self._stream is None:
            return samples
        return as_int16(self._stream.resample_chunk(as_float(samples), last=is_last))


class SamplesOfWindow(NamedTuple):
    """Samples of one window of a stream."""

    samples: Int16[np.ndarray, " S"]
    """S = `FeatureWindows.num_samples`, with zeros at the end."""
    length: int
    """Number of valid samples."""
    skipped: int
    """Number of frames before the window; negative if the window begins before the stream."""


class SampleBuffer:
    """Samples of one stream, from the first one that the next window needs."""

    def __init__(self, windows: FeatureWindows) -> None:
        self._windows, self._front_end = windows, windows.front_end
        self._pieces = deque[Int16[np.ndarray, " N"]]()
        """Copied samples, in pieces of at most one window."""
        self._num = 0
        """Number of samples in all pieces."""
        self._frame = -windows.before
        self.has_ended = False
        """Whether no samples follow."""

    def add(self, samples: Int16[np.ndarray, " S"]) -> None:
        """Adds the next samples, in any number."""
        most = self._windows.num_samples
        self._pieces += [samples[first : first + most].copy() for first in range(0, len(samples), most)]
        self._num += len(samples)

    def end(self) -> None:
        """Ends the stream: no samples follow."""
        self.has_ended = True

    @property
    def is_ready(self) -> bool:
        """Whether the next window is known: enough samples were added, or the stream has ended."""
        skipped, num = self._skipped, self._num
        if self._front_end.num_settled(num) >= skipped + self._windows.size:
            return True
        return self.has_ended and self._front_end.output_length(num) > max(skipped, 0)

    def take(self) -> SamplesOfWindow:
        """Returns the samples of the next window, and removes those that later windows do not need.

        The next window must be known.
        """
        assert self.is_ready, "the next window is not known"
        first, skipped, num = self._first, self._skipped, self._windows.num_samples
        self._frame += self._windows.shift
        num_done = (self._first - first) * self._front_end.hop
        joined = np.zeros(0, np.int16)
        if self._pieces:
            taken = [self._pieces.popleft()]
            size = len(taken[0])
            while self._pieces and size < max(num, num_done):
                taken.append(self._pieces.popleft())
                size += len(taken[-1])
            joined = np.concatenate(taken)
        given, left = joined[:num], joined[num_done:]
        self._pieces.appendleft(left)
        self._num -= len(joined) - len(left)
        return SamplesOfWindow(np.pad(given, (0, num - len(given))), len(given), skipped)

    @property
    def _first(self) -> int:
        """Frame of the stream at which the samples of the buffer begin."""
        return max(self._frame - self._front_end.run_up, 0)

    @property
    def _skipped(self) -> int:
        """Number of frames between the first sample of the buffer and the next window."""
        return self._frame - self._first
