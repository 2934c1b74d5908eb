"""Trimming of silence at both ends of a recording, by a location of the part between."""

from dataclasses import replace

import numpy as np
from jaxtyping import Int16

from asr_jax.audio.io import AudioError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance

RATE_HZ = 16000
FRAME, HOP = 2048, 512


def sounding_part(samples: Int16[np.ndarray, " S"], below_db: float) -> tuple[int, int]:
    """First and last sample (exclusive) of the part that is not silent. The whole if all of it is silent.

    Silence is quieter than the loudest frame by at least `below_db`, by the mean square in frames of 2048 samples that
    are centred every 512 samples.

    Source: librosa.effects.trim.
    """
    padded = np.pad(samples.astype(np.float64), FRAME // 2)
    power = np.concatenate([[0.0], np.cumsum(padded**2)])
    starts = np.arange(0, len(padded) - FRAME + 1, HOP)
    mean_square = (power[starts + FRAME] - power[starts]) / FRAME
    loud = np.flatnonzero(mean_square > mean_square.max() * 10 ** (-below_db / 10))
    if not len(loud) or mean_square.max() <= 0:
        return 0, len(samples)
    return int(loud[0]) * HOP, min((int(loud[-1]) + 1) * HOP, len(samples))


def trimmed(utterance: Utterance, below_db: float) -> Utterance:
    """Utterance without silence at both ends. Ready features, and audio that cannot be read, are returned unchanged."""
    location = Location.parse(utterance.location)
    if location.shape is not None:
        return utterance
    try:
        samples = location.audio(rate_hz=RATE_HZ)
    except AudioError:
        return utterance
    first, end = sounding_part(samples, below_db)
    if (first, end) == (0, len(samples)):
        return utterance
    length_s = (end - first) / RATE_HZ
    start_s = location.start_s + first / RATE_HZ
    part = replace(location, start_s=start_s, length_s=length_s, may_overshoot=False)
    return replace(utterance, location=str(part), duration_s=length_s)
