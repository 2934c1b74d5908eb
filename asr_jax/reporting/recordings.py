"""Recordings of a report: compressed audio and spectrograms as data URIs."""

import io
from base64 import b64encode
from dataclasses import dataclass

import numpy as np
import soundfile
from jaxtyping import Int16
from matplotlib import image, mlab

from asr_jax.audio.io import AudioError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.remote import is_url

RATE_HZ = 16_000
WINDOW = 400
"""Samples of a window of the spectrogram."""
MOST_FRAMES = 1500
"""Largest number of columns of a spectrogram: long recordings have a larger step between windows."""
BYTES_PER_S = 4100
"""Bytes of the data URI of a second of audio, without the picture."""
RANGE_DB = 80
"""Range of a spectrogram below its loudest value."""


@dataclass(frozen=True)
class Embedded:
    """A recording within the page, or the reason why it is not there."""

    duration_s: float = 0.0
    audio: str = ""
    """Data URI of MP3, mono, 24 kbit/s."""
    spectrogram: str = ""
    """Data URI of a WebP picture: 0 to 8 kHz from bottom to top."""
    missing: str = ""
    """Reason why there is neither audio nor spectrogram; otherwise empty."""

    @property
    def num_bytes(self) -> int:
        return len(self.audio) + len(self.spectrogram)


def embedded(location: str, *, most_bytes: int) -> Embedded:
    """Reads, compresses and draws a recording, if the result has at most a number of bytes.

    Predictions may be of others, so that only local files are read: commands in locations are not run, and URLs are not
    fetched.
    """
    place = Location.parse(location)
    if not location:
        return Embedded(missing="the predictions have no location of the recording")
    if place.command or is_url(place.path):
        return Embedded(missing=f"{location} is a command or a URL; a report reads only local files")
    if place.shape is not None:
        return Embedded(missing=f"{location} has features, no audio")
    try:
        too_long = place.info().duration_s * BYTES_PER_S > most_bytes
        samples = np.zeros(0, np.int16) if too_long else place.audio(rate_hz=RATE_HZ)
    except (AudioError, OSError, ValueError) as error:
        return Embedded(missing=str(error))
    found = Embedded() if too_long else Embedded(len(samples) / RATE_HZ, mp3(samples), spectrogram(samples))
    if too_long or found.num_bytes > most_bytes:
        return Embedded(missing="it would exceed the largest size of all recordings, which --audio-mb sets")
    return found


def mp3(samples: Int16[np.ndarray, " S"]) -> str:
    """Returns samples of 16 kHz as the data URI of an MP3 file, which all browsers play."""
    file = io.BytesIO()
    soundfile.write(
        file, samples, RATE_HZ, format="MP3", subtype="MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.9
    )
    return _data_uri("audio/mpeg", file.getvalue())


def spectrogram(samples: Int16[np.ndarray, " S"]) -> str:
    """Returns the spectrogram of samples of 16 kHz as the data URI of a picture."""
    hop = max(WINDOW * 2 // 5, -(-len(samples) // MOST_FRAMES))
    padded = np.pad(samples.astype(np.float64), (0, max(WINDOW + hop - len(samples), 0)))
    kept = padded if hop <= WINDOW else _thinned(padded, hop)
    power, _, _ = mlab.specgram(kept, NFFT=WINDOW, Fs=RATE_HZ, noverlap=max(WINDOW - hop, 0))
    levels = 10 * np.log10(np.maximum(power, 1e-10))
    file = io.BytesIO()
    least = levels.max() - RANGE_DB
    image.imsave(
        file, levels, vmin=least, vmax=least + RANGE_DB, cmap="magma", origin="lower", format="webp",
        pil_kwargs={"quality": 60},
    )  # fmt: skip
    return _data_uri("image/webp", file.getvalue())


def _thinned(samples: np.ndarray, hop: int) -> np.ndarray:
    """Returns the first window of every `hop` samples, one after another."""
    num = len(samples) // hop
    return samples[: num * hop].reshape(num, hop)[:, :WINDOW].ravel()


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"
