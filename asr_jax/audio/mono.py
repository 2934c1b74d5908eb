"""One channel of recordings: their levels are checked while their channels are mixed."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Float32, Int16, Shaped

from asr_jax.audio.errors import AudioError

FULL_SCALE = 32768
MAX_PEAK = 2.0
"""Largest peak of floating-point samples of full scale 1. Resampling and mixing exceed full scale by some dB; a larger
peak means another scale, such as that of 16-bit integers."""
SILENT_STEPS = 2
"""Largest difference of two samples of silence, in steps of 16 bits: a constant, or its dither."""
CANCELLED_SHARE = 1e-3
"""Power of the mean of all channels, as a share of their mean power, below which they cancel out."""
CANCELLED_SAMPLES = 800
"""Smallest number of samples that can cancel out: fewer may be opposite by chance."""
SILENT = "silent: all samples are equal"


@dataclass
class Remarks:
    """Remarks on audio that is used although it is not as it should be. Reading audio fills them."""

    reasons: list[str] = field(default_factory=list)
    """One line each: samples that are missing at the end, and clipped samples."""
    is_silent: bool = False
    """Whether all samples are equal. They may be any constant."""


class Mono:
    """Mixes the blocks of one recording to one channel."""

    def __init__(self, name: str, channel: int | None, remarks: Remarks) -> None:
        """Initialises for a recording.

        Args:
            channel: Number of the channel, from 0. None: the mean of all channels.
            remarks: Takes the remarks of `finish`.
        """
        self._name, self._channel, self._remarks = name, channel, remarks
        self._peak, self._num_clipped = 0.0, 0
        self._lowest, self._highest = np.inf, -np.inf
        self._num_samples, self._power_of_channels, self._power_of_mean = 0, 0.0, 0.0

    def __call__(self, block: Shaped[np.ndarray, "S C"], *, is_float: bool) -> Shaped[np.ndarray, " S"]:
        """Returns one channel, or the mean of all: int16 if a single int16 channel is copied, otherwise float32.

        Args:
            block: Samples: int16, or floats of full scale ±1.
            is_float: Whether the file has floating-point samples, without lossy codecs, which may exceed full scale.

        Raises:
            AudioError: If there is no such channel, a sample is NaN or infinite, or the peak of floating-point samples
                exceeds MAX_PEAK.
        """
        if self._channel is not None:
            if self._channel >= block.shape[1]:
                raise AudioError(
                    self._name, f"no channel {self._channel}: the file has {block.shape[1]}, numbered from 0"
                )
            block = block[:, self._channel : self._channel + 1]
        if not len(block):
            return block[:, 0]
        if block.dtype != np.int16:
            self._check(block, is_float)
        scale = 1 if block.dtype == np.int16 and block.shape[1] == 1 else FULL_SCALE
        mono = block[:, 0] if scale == 1 else self._mean(as_float(block))
        self._lowest = min(self._lowest, float(mono.min()) * scale)
        self._highest = max(self._highest, float(mono.max()) * scale)
        return mono

    def finish(self) -> None:
        """Adds the remarks after the last block.

        Raises:
            AudioError: If the channels cancel out.
        """
        is_silent = self._power_of_mean < CANCELLED_SHARE * self._power_of_channels
        if is_silent and self._num_samples >= CANCELLED_SAMPLES:
            raise AudioError(
                self._name,
                "its channels cancel out when they are mixed; read one of them, such as PATH#channel=0",
            )
        if self._num_clipped:
            self._remarks.reasons.append(
                f"above full scale: the peak is {self._peak:.4g}, full scale is 1; {self._num_clipped} samples are "
                "clipped"
            )
        self._remarks.is_silent = self._highest - self._lowest <= SILENT_STEPS

    def _check(self, block: Float32[np.ndarray, "S C"], is_float: bool) -> None:
        peak = float(np.abs(block).max())
        if not np.isfinite(peak):
            num = int((~np.isfinite(block)).sum())
            raise AudioError(self._name, f"not finite: {num} samples are NaN or infinite; create the file again")
        if peak > 1 and is_float:
            if peak > MAX_PEAK:
                raise AudioError(self._name, out_of_range(peak))
            self._peak = max(self._peak, peak)
            self._num_clipped += int((np.abs(block) > 1).sum())

    def _mean(self, block: Float32[np.ndarray, "S C"]) -> Float32[np.ndarray, " S"]:
        mono = block.mean(axis=1, dtype=np.float32)
        self._num_samples += len(block)
        if block.shape[1] > 1:
            self._power_of_channels += float(np.vdot(block, block)) / block.shape[1]
            self._power_of_mean += float(np.vdot(mono, mono))
        return mono


def out_of_range(peak: float) -> str:
    """Reason to refuse floating-point samples with a peak above MAX_PEAK."""
    return (
        f"out of range: the peak is {peak:.4g}, full scale is 1; divide the samples by {FULL_SCALE} if they have the "
        "scale of 16-bit integers, otherwise reduce their level"
    )


def as_int16(samples: Float[np.ndarray, " S"]) -> Int16[np.ndarray, " S"]:
    """Converts float samples of full scale ±1 to int16. Samples that exceed full scale are clipped."""
    return np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def as_float(samples: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """Converts int16 samples to float32 of full scale ±1; returns float samples unchanged."""
    return samples.astype(np.float32) / FULL_SCALE if samples.dtype == np.int16 else samples
