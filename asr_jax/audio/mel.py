"""Mel scales and triangular mel filter banks, computed once on the host in float64."""

import functools
from typing import Any, Literal

import numpy as np

MelScale = Literal["kaldi", "htk", "slaney"]


@functools.cache
def mel_bank(
    num_mels: int, fft_length: int, rate_hz: int, low_hz: float, high_hz: float, *, scale: MelScale, equal_area: bool
) -> np.ndarray:
    """Returns a triangular mel filter bank.

    Source: Kaldi feat/mel-computations.cc; librosa.filters.mel.

    Args:
        num_mels: Number of mel bins.
        fft_length: Length of the Fourier transform in samples.
        low_hz: Lower edge of the bank in Hz.
        high_hz: Upper edge of the bank in Hz.
        scale: Mel scale on which the triangles' edges are equally spaced: `htk`, `slaney` (Auditory Toolbox: linear
            below 1 kHz), or `kaldi`, which is htk's with triangles that are linear in mels instead of hertz.
        equal_area: Whether triangles have area 1 over hertz (librosa's `norm="slaney"`) instead of height 1.

    Returns:
        Weights `[fft_length // 2 + 1, num_mels]` of the bins of the spectrum, float32.
    """
    hertz = np.arange(fft_length // 2 + 1) * rate_hz / fft_length
    edges = np.linspace(to_mel(low_hz, scale), to_mel(high_hz, scale), num_mels + 2)
    if scale == "kaldi":
        position = to_mel(hertz, scale)[:, None]
        edges_hz = _to_hertz(edges, scale)
    else:
        edges = edges_hz = _to_hertz(edges, scale)
        position = hertz[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (position - left) / (centre - left), (right - position) / (right - centre)
    bank = np.maximum(np.minimum(rising, falling), 0.0)
    if scale == "kaldi":
        bank[-1] = 0.0  # Kaldi excludes the bin of half the sample rate
    if equal_area:
        bank *= 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return bank.astype(np.float32)


def to_mel(hertz: Any, scale: MelScale) -> Any:
    """Converts frequencies in Hz to mels."""
    hertz = np.asarray(hertz, np.float64)
    if scale == "slaney":
        above = 15.0 + 27.0 * np.log(np.maximum(hertz, 1000.0) / 1000.0) / np.log(6.4)
        return np.where(hertz < 1000.0, hertz * 3 / 200, above)
    return 1127.0 * np.log1p(hertz / 700.0)


def _to_hertz(mels: Any, scale: MelScale) -> Any:
    if scale == "slaney":
        above = 1000.0 * np.exp((np.maximum(mels, 15.0) - 15.0) * np.log(6.4) / 27.0)
        return np.where(mels < 15.0, mels * 200 / 3, above)
    return 700.0 * np.expm1(mels / 1127.0)
