"""Conversion of frame numbers of an encoder to seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MANY = 2**22
"""Number of input frames over which an encoder's hop is measured: exactly, if the hop has at most 1,448 of them."""


@dataclass(frozen=True)
class FrameTimes:
    """Positions in the recording of the frames that a head reads."""

    shift: int
    """Hop: distance between frames in samples."""
    first: float
    """Start of the first frame in samples; negative if that frame is centred on the first sample."""
    rate_hz: float
    """Samples per second."""

    @classmethod
    def of(cls, output_length: Callable[[Any], Any], *, hop: int, rate_hz: float) -> "FrameTimes":
        """Measures the hop and the first frame of an encoder from its output lengths.

        A frame is taken to be as long as the hop and to be centred on its receptive field. Convolutions are taken to
        remove or add equally many frames at both edges. If an encoder pads only the end, times are off by half the
        padding (icefall's Zipformer: 10 ms).

        Args:
            output_length: Function from numbers of samples to numbers of output frames, for ints and arrays.
            hop: Hop of the encoder's input frames in samples.
            rate_hz: Samples per second.
        """
        long, longer = MANY * hop, 2 * MANY * hop
        shift = round((longer - long) / (int(output_length(longer)) - int(output_length(long))))
        lengths = long + np.arange(shift)
        lost = lengths - shift * np.asarray(output_length(lengths))
        return cls(shift, float(lost.min()) / 2, rate_hz)

    @property
    def shift_s(self) -> float:
        return self.shift / self.rate_hz

    def seconds(self, frame: float) -> float:
        """Returns the time in seconds at which a frame begins and the previous one ends; never less than 0."""
        return max(self.first + frame * self.shift, 0.0) / self.rate_hz
