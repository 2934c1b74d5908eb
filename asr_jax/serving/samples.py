"""The part of decoded samples that `python -m asr_jax.transcribe` uses of the same file."""

from dataclasses import replace

from asr_jax.audio.errors import AudioError
from asr_jax.data.loading.source import used_part
from asr_jax.data.manifests.locations import Location
from asr_jax.serving.decoding import Decoded
from asr_jax.serving.errors import unusable


def used_samples(decoded: Decoded, rate_hz: int) -> Decoded:
    """Returns the samples up to the duration in the header.

    Raises:
        ApiError: If a part of the audio is missing.
    """
    room, length = len(decoded.samples), round(decoded.duration_s * rate_hz)
    try:
        samples, _ = used_part(decoded.samples, Location(""), speed=1.0, length=length, room=room, per_s=rate_hz)
    except AudioError as error:
        raise unusable(error.reason) from None
    return replace(decoded, samples=samples)
