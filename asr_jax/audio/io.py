"""Audio files on the host: reads files or parts of them as mono int16 samples, reads headers, and writes FLAC."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32, Int16, Shaped

from asr_jax.audio.checks import AudioPart, check_part, check_values, check_whole, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.pyav import SUFFIXES, decode_with_pyav, probe_with_pyav
from asr_jax.audio.wav import with_unknown_size

__all__ = ["AudioError", "AudioInfo", "NamedAudio", "PathLike", "probe", "read_audio", "write_flac"]

PathLike = str | os.PathLike[str]

FULL_SCALE = 32768
BLOCK_SAMPLES = 1 << 22
MP3_RUN_UP_SAMPLES = 32 * 1152
"""Number of samples decoded and discarded after a seek in an MP3 file: a frame of MP3 uses bytes of earlier frames, and
the first frames after a seek are decoded to silence or to wrong samples."""


class NamedAudio(io.BytesIO):
    """Content of a file in memory, with its name for error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """Duration, sample rate and number of channels of an audio file."""

    duration_s: float
    """Duration in seconds."""
    rate_hz: int
    """Sample rate in Hz."""
    channels: int
    """Number of channels."""


def read_audio(
    file: PathLike | NamedAudio,
    *,
    rate_hz: int = 16000,
    speed: float = 1.0,
    start_s: float = 0.0,
    length_s: float | None = None,
    may_overshoot: bool = False,
    channel: int | None = None,
) -> Int16[np.ndarray, " S"]:
    """Reads an audio file, or a part of it, as mono int16 samples.

    Formats: wav, flac, mp3, ogg, opus, sph and all others that libsndfile reads; m4a, aac and webm with the extra
    `formats`. Audio is resampled by soxr (HQ). 16-bit mono samples that need no resampling are returned unchanged.
    Samples of lossy codecs that exceed full scale are clipped; a float WAV that exceeds full scale is an error.

    Args:
        rate_hz: Sample rate of the result in Hz.
        speed: Speed factor: 1.1 is 10 % faster and divides the length by 1.1. Tempo and pitch change, as in sox.
        start_s: Start of the part in seconds of the file. Only the part is decoded where the format allows it.
        length_s: Length of the part in seconds of the file. None: up to the end.
        may_overshoot: Whether up to half of the part, at most half a second, may be beyond the end of the file.
        channel: Number of the channel to read, from 0. None: the mean of all channels.

    Returns:
        Samples of full scale ±32768.

    Raises:
        AudioError: If the file is missing, unreadable, truncated, empty, not finite or beyond ±1, has no such channel,
            or ends before the part.
    """
    name, part = name_of(file), AudioPart(start_s, length_s, may_overshoot)
    if name.lower().endswith(SUFFIXES) and is_there(file):
        samples, from_hz = decode_with_pyav(file, name)
        samples = _part_of(samples, from_hz, name, part)
    else:
        with opened(file) as sound:
            is_whole = length_s is None and not start_s
            promised = promised_samples(sound, name, lambda: again(file), whole=is_whole)
            samples, from_hz = _samples(sound, name, promised, part), sound.samplerate
    if channel is not None:
        if channel >= samples.shape[1]:
            raise AudioError(name, f"no channel {channel}: the file has {samples.shape[1]}, numbered from 0")
        samples = samples[:, channel : channel + 1]
    if samples.dtype == np.int16 and samples.shape[1] == 1 and from_hz * speed == rate_hz:
        return samples[:, 0]
    mono = as_float(samples).mean(axis=1, dtype=np.float32)
    if from_hz * speed != rate_hz:
        mono = soxr.resample(mono, from_hz * speed, rate_hz)
    if not len(mono):
        raise AudioError(name, f"too short to resample: {len(samples)} samples")
    return np.clip(np.rint(mono * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def probe(file: PathLike | NamedAudio) -> AudioInfo:
    """Reads duration, sample rate and number of channels from the header. A file without its length there is decoded.

    Raises:
        AudioError: If the file is missing or is not audio.
    """
    if name_of(file).lower().endswith(SUFFIXES) and is_there(file):
        return AudioInfo(*probe_with_pyav(file, name_of(file)))
    with opened(file) as sound:
        promised = promised_samples(sound, name_of(file), lambda: again(file))
        num_samples = sum(map(len, _blocks(sound, promised))) if promised is None else promised
        return AudioInfo(num_samples / sound.samplerate, sound.samplerate, sound.channels)


def write_flac(path: PathLike, samples: Int16[np.ndarray, " S"], rate_hz: int) -> None:
    """Writes 16-bit mono FLAC.

    Args:
        path: Path of the new file.
        samples: Samples of full scale ±32768.
    """
    with open(path, "wb") as file:  # libsndfile's error would not have the system's reason
        soundfile.write(file, samples, rate_hz, format="FLAC", subtype="PCM_16")


def name_of(file: PathLike | NamedAudio) -> str:
    """Returns the path of a file, or the name of content in memory."""
    return file.name if isinstance(file, NamedAudio) else os.fspath(file)


def again(file: PathLike | NamedAudio) -> io.BufferedIOBase:
    """Opens the same file at its beginning, independently of the position at which libsndfile reads."""
    return io.BytesIO(file.getvalue()) if isinstance(file, NamedAudio) else open(file, "rb")


def is_there(file: PathLike | NamedAudio) -> bool:
    """Returns False for missing and empty files, for which `opened` has better error messages than FFmpeg."""
    return isinstance(file, NamedAudio) or (os.path.isfile(file) and os.path.getsize(file) > 0)


@contextmanager
def opened(file: PathLike | NamedAudio) -> Iterator[soundfile.SoundFile]:
    """Opens an audio file with libsndfile, whose errors, also inside the block, are raised as AudioError."""
    try:
        # soundfile raises a TypeError for names that end in .raw, because it needs their format as an argument.
        sound = soundfile.SoundFile(file)
        if not sound.frames and sound.format.startswith("WAV") and (whole := _with_unknown_size(file)):
            sound = soundfile.SoundFile(whole)
    except (soundfile.LibsndfileError, TypeError) as error:
        raise AudioError(name_of(file), _why_not_opened(file, error)) from None
    try:
        with sound:
            yield sound
    except soundfile.LibsndfileError as error:
        raise AudioError(name_of(file), f"truncated or damaged ({_words(error)}); copy the file again") from None


def _with_unknown_size(file: PathLike | NamedAudio) -> io.BytesIO | None:
    """Content of a WAV file whose header has a size of 0 bytes although samples follow; None for other files."""
    with again(file) as content:
        whole = with_unknown_size(content.read())
    return io.BytesIO(whole) if whole else None


def _why_not_opened(file: PathLike | NamedAudio, error: Exception) -> str:
    if isinstance(file, NamedAudio):
        if not file.getbuffer().nbytes:
            return "empty (0 bytes)"
    elif not os.path.exists(file):
        return "no such file"
    elif os.path.isdir(file):
        return "a folder, not an audio file"
    elif not os.access(file, os.R_OK):
        return "no permission to read it"
    elif not os.path.getsize(file):
        return "empty file (0 bytes)"
    words = _words(error)
    if "regular file" in words:  # libsndfile's words for an existing file without a known header
        words = "no known audio format in its content"
    return f"not audio that libsndfile can read ({words}); if it is audio, convert it to flac; otherwise remove it"


def _words(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).removeprefix("Error : ").rstrip(".")


def _samples(sound: soundfile.SoundFile, name: str, promised: int | None, part: AudioPart) -> Shaped[np.ndarray, "S C"]:
    """Reads and checks the samples of a part. The first branch, a whole file, is the usual case."""
    if part.length_s is None and not part.start_s:
        samples = _decode(sound, promised)
        check_whole(sound, name, promised, samples)
        return samples
    if promised is None or not sound.seekable():
        return _part_of(_decode(sound, promised), sound.samplerate, name, part)
    first = round(part.start_s * sound.samplerate)
    wanted = sound.frames - first if part.length_s is None else round(part.length_s * sound.samplerate)
    before = min(first, MP3_RUN_UP_SAMPLES) if sound.format == "MP3" else 0
    if first < sound.frames:
        sound.seek(first - before)
    num = before + max(wanted, 0) if first < sound.frames else 0
    samples = sound.read(num, dtype=dtype_of(sound), always_2d=True)[before:]
    check_part(len(samples), wanted, sound.samplerate, name, part)
    check_values(sound, name, samples)
    return samples


def _part_of(samples: Shaped[np.ndarray, "S C"], rate_hz: int, name: str, part: AudioPart) -> Shaped[np.ndarray, "P C"]:
    first = round(part.start_s * rate_hz)
    wanted = len(samples) - first if part.length_s is None else round(part.length_s * rate_hz)
    there = samples[first : first + max(wanted, 0)]
    check_part(len(there), wanted, rate_hz, name, part)
    return there


def dtype_of(file: soundfile.SoundFile) -> str:
    """Returns int16 for 16-bit PCM, otherwise float32."""
    return "int16" if file.subtype == "PCM_16" else "float32"


def _decode(file: soundfile.SoundFile, promised: int | None) -> Shaped[np.ndarray, "S C"]:
    """Reads all samples: int16 if the file is 16-bit PCM, otherwise float32."""
    blocks = list(_blocks(file, promised))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _blocks(file: soundfile.SoundFile, promised: int | None) -> Iterator[Shaped[np.ndarray, "S C"]]:
    """Reads all samples in at least one block of up to BLOCK_SAMPLES samples."""
    if promised is None:
        # soundfile seeks after every read, which libsndfile cannot do in a file of unknown length.
        file.seekable = lambda: False
    block = file.read(BLOCK_SAMPLES, dtype=dtype_of(file), always_2d=True)
    yield block
    while len(block) == BLOCK_SAMPLES:
        block = file.read(BLOCK_SAMPLES, dtype=dtype_of(file), always_2d=True)
        yield block


def as_float(samples: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """Converts int16 samples to float32 of full scale ±1; returns float samples unchanged."""
    return samples.astype(np.float32) / FULL_SCALE if samples.dtype == np.int16 else samples
