"""Audio that a record or a row has as samples, such as decoded arrays of Hugging Face's `datasets`."""

import io
from collections.abc import Sequence

import numpy as np
import soundfile
from jaxtyping import Num

from asr_jax.audio.mono import MAX_PEAK
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.fields import InvalidEntry


def wav(name: str, values: Sequence[float] | Num[np.ndarray, "..."], rate_hz: int) -> bytes:
    """WAV file of the samples in a field.

    Args:
        name: Name of the field, for messages.
        values: 16-bit integers, or floats from -1 to 1.

    Raises:
        InvalidEntry: If they are not samples of one channel.
    """
    try:
        samples = np.asarray(values)
        if samples.dtype.kind in "iu" and (samples == samples.astype(np.int16)).all() and samples.ndim == 1:
            samples, subtype = samples.astype(np.int16), "PCM_16"
        elif samples.dtype.kind == "f" and (np.abs(samples) <= MAX_PEAK).all() and samples.ndim == 1:
            samples, subtype = samples.astype(np.float32), "FLOAT"
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidEntry(
            f'"{name}" is {f.shown(list(values[:8]))[:60]}; expected samples of 16 bits, or floats from -1 to 1, of '
            "one channel"
        ) from None
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype=subtype)
    return file.getvalue()
