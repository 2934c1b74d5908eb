"""From the frames of an encoder to seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MANY = 4096
"""Frames over which a stride is measured: front-ends and encoders have smaller ones."""


@dataclass(frozen=True)
class FrameTimes:
    """Where the frames that a head reads are in their recording."""

    shift: int
    """From one frame to the next, in samples."""
    first: float
    """Where the first frame begins, likewise; negative where it is centred on the first sample."""
    rate_hz: float
    """Samples per second."""

    @classmethod
    def of(cls, output_length: Callable[[Any], Any], *, hop: int, rate_hz: float) -> "FrameTimes":
        """Of an encoder by what its lengths say. `hop`: samples of a frame before the encoder.

        An encoder that loses frames at the edges of its convolutions, or adds some, does so at both alike: a frame is
        as long as the shift, and centred on what it is computed from. Where an encoder's last frame is padded, this is
        wrong by half the padding (icefall's Zipformer: 10 ms).
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
        """Where a frame begins, or the one before it ends; never before the recording's beginning."""
        return max(self.first + frame * self.shift, 0.0) / self.rate_hz
