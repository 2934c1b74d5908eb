"""Resampling on the device by windowed sinc functions: a polyphase filter.

Source: torchaudio.functional.resample; Smith, "Digital Audio Resampling", https://ccrma.stanford.edu/~jos/resample/.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

HALF_WIDTH = 6
"""Number of zero crossings of the sinc function on each side."""
ROLLOFF = 0.99
"""Cutoff frequency of the filter as a fraction of half the lower sample rate."""


def resample(samples: Float[Array, "B S"], from_hz: int, to_hz: int) -> Float[Array, "B N"]:
    """Resamples rows to another sample rate.

    Args:
        samples: Samples at `from_hz`.
        from_hz: Sample rate of the samples in Hz.
        to_hz: Sample rate of the result in Hz.

    Returns:
        N = S · to_hz / from_hz samples per row, rounded up.
    """
    divisor = math.gcd(from_hz, to_hz)
    old, new = from_hz // divisor, to_hz // divisor
    if old == new:
        return samples
    kernels, width = _kernels(old, new)
    rows, size = samples.shape
    padded = jnp.pad(samples, ((0, 0), (width, width + old)))
    phases = jax.lax.conv_general_dilated(
        padded[..., None],
        jnp.asarray(kernels),
        (old,),
        "VALID",
        dimension_numbers=("NWC", "WIO", "NWC"),
        precision=jax.lax.Precision.HIGHEST,
    )
    return phases.reshape(rows, -1)[:, : -(-new * size // old)]


@functools.cache
def _kernels(old: int, new: int) -> tuple[np.ndarray, int]:
    """Returns the filters `[taps, 1, new]` of the `new` phases, and the number of taps before the current sample."""
    base = min(old, new) * ROLLOFF
    width = math.ceil(HALF_WIDTH * old / base)
    place = np.arange(-width, width + old)[None] / old - np.arange(new)[:, None] / new
    place = np.clip(place * base, -HALF_WIDTH, HALF_WIDTH)
    window = np.cos(place * np.pi / HALF_WIDTH / 2) ** 2
    kernels = np.sinc(place) * window * base / old
    return kernels.T[:, None].astype(np.float32), width
