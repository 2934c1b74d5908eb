"""Audio files on the host: read to mono int16 at one rate, probe a header, write FLAC."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32, Int16, Shaped

PathLike = str | os.PathLike[str]

FULL_SCALE = 32768
BLOCK_SAMPLES = 1 << 22
# An MP3 header counts the encoder's delay, which the decoder drops: a sound file gives up to two frames less.
MP3_SLACK_SAMPLES = 2 * 1152
# Writers that cannot seek back (pipes) leave a size near 2 or 4 GiB in a WAV header: that promises nothing.
WAV_UNKNOWN_BYTES = 0x7FFF0000


class AudioError(ValueError):
    """A file that cannot be used; `reason` is one line without the path."""

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path = str(path)
        self.reason = " ".join(reason.split())

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What a file's header says."""

    duration_s: float
    rate_hz: int
    channels: int


def read_audio(path: PathLike, *, rate_hz: int = 16000, speed: float = 1.0) -> Int16[np.ndarray, " S"]:
    """Samples of wav, flac, mp3, ogg, opus, sph: channels averaged, resampled by soxr (HQ), full scale ±32768.

    `speed` 1.1 is faster and shorter: S is the length at `rate_hz` divided by it (tempo and pitch change, as in sox).
    16-bit samples that need neither come back untouched. Codecs that overshoot are clipped; a float WAV is not.

    Raises: AudioError where the file is missing, unreadable, truncated, empty, not finite or beyond ±1.
    """
    with _opened(path) as file:
        samples = _decode(file)
        _check(file, samples)
        from_hz = file.samplerate * speed
    if samples.dtype == np.int16 and samples.shape[1] == 1 and from_hz == rate_hz:
        return samples[:, 0]
    mono = _as_float(samples).mean(axis=1, dtype=np.float32)
    if from_hz != rate_hz:
        mono = soxr.resample(mono, from_hz, rate_hz)
    if not len(mono):
        raise AudioError(path, f"too short to resample: {len(samples)} samples")
    return np.clip(np.rint(mono * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def probe(path: PathLike) -> AudioInfo:
    """Duration, rate and channels from the header; a file whose header leaves its length open is decoded.

    Raises: AudioError where the file is missing or no audio.
    """
    with _opened(path) as file:
        num_samples = len(_decode(file)) if _is_unknown(file) else file.frames
        return AudioInfo(num_samples / file.samplerate, file.samplerate, file.channels)


def write_flac(path: PathLike, samples: Int16[np.ndarray, " S"], rate_hz: int) -> None:
    """16-bit mono FLAC."""
    soundfile.write(path, samples, rate_hz, format="FLAC", subtype="PCM_16")


@contextmanager
def _opened(path: PathLike) -> Iterator[soundfile.SoundFile]:
    """The open file; libsndfile's errors, while opening and inside the block, become AudioError."""
    try:
        # soundfile wants to be told the format of a name that ends in .raw, and says so with a TypeError.
        file = soundfile.SoundFile(path)
    except (soundfile.LibsndfileError, TypeError) as error:
        raise AudioError(path, _why_not_opened(path, error)) from None
    try:
        with file:
            yield file
    except soundfile.LibsndfileError as error:
        raise AudioError(path, f"truncated or damaged: {error.error_string}") from None


def _why_not_opened(path: PathLike, error: Exception) -> str:
    if not os.path.exists(path):
        return "no such file"
    if os.path.isdir(path):
        return "a folder, not an audio file"
    if not os.access(path, os.R_OK):
        return "no permission to read it"
    if not os.path.getsize(path):
        return "empty file (0 bytes)"
    return f"not audio that libsndfile can read: {getattr(error, 'error_string', error)}"


def _is_unknown(file: soundfile.SoundFile) -> bool:
    # A FLAC written to a pipe has no length in its header; libsndfile gives the largest integer for it.
    return file.frames >= 1 << 62


def _decode(file: soundfile.SoundFile) -> Shaped[np.ndarray, "S C"]:
    """All samples, int16 where the file is 16-bit PCM, else float32."""
    dtype = "int16" if file.subtype == "PCM_16" else "float32"
    if _is_unknown(file):
        # soundfile seeks after every read, which libsndfile cannot in a file of unknown length.
        file.seekable = lambda: False
    blocks = [file.read(BLOCK_SAMPLES, dtype=dtype, always_2d=True)]
    while len(blocks[-1]) == BLOCK_SAMPLES:
        blocks.append(file.read(BLOCK_SAMPLES, dtype=dtype, always_2d=True))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _check(file: soundfile.SoundFile, samples: Shaped[np.ndarray, "S C"]) -> None:
    """Raises AudioError for samples that are cut, absent, not finite or out of range."""
    # libsndfile trims a WAV's length to what the file holds and tells the difference only in its log.
    log = file.extra_info if file.format.startswith("WAV") else ""
    sizes = re.search(r"data : (\d+) \(should be (\d+)\)", log)
    if sizes and int(sizes[2]) < int(sizes[1]) < WAV_UNKNOWN_BYTES:
        raise AudioError(file.name, f"truncated: {sizes[2]} of {sizes[1]} bytes of samples are there")
    promised = file.frames - (MP3_SLACK_SAMPLES if file.format == "MP3" else 0)
    if not _is_unknown(file) and len(samples) < promised:
        raise AudioError(file.name, f"truncated: {len(samples)} of {file.frames} samples are there")
    if not len(samples):
        raise AudioError(file.name, "no samples")
    if samples.dtype == np.int16:
        return
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise AudioError(file.name, f"not finite: {int((~np.isfinite(samples)).sum())} samples are NaN or infinite")
    if peak > 1 and file.subtype in ("FLOAT", "DOUBLE"):
        raise AudioError(file.name, f"out of range: a peak of {peak:.4g} where full scale is 1; scale the file down")


def _as_float(samples: Shaped[np.ndarray, "S C"]) -> Float32[np.ndarray, "S C"]:
    return samples.astype(np.float32) / FULL_SCALE if samples.dtype == np.int16 else samples
