"""Audio files on the host: reads files or parts of them as mono int16 samples, reads headers, and writes FLAC."""

import functools
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from jaxtyping import Int16, Shaped

from asr_jax.audio.checks import AudioPart, check_joined, check_number, check_part, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.joined import is_joined
from asr_jax.audio.mono import Mono, Remarks, as_float, as_int16
from asr_jax.audio.ogg import has_gaps
from asr_jax.audio.pyav import (
    CONTENT_BYTES,
    SUFFIXES,
    Block,
    Joined,
    NeedsFFmpeg,
    blocks_with_pyav,
    decode_with_pyav,
    is_of_ffmpeg,
    probe_with_pyav,
)
from asr_jax.audio.wav import with_unknown_size

__all__ = ["AudioError", "AudioInfo", "NamedAudio", "PathLike", "Remarks", "probe", "read_audio", "write_flac"]

PathLike = str | os.PathLike[str]

NOT_A_FILE = "a pipe or a device, not a file; write its content to a file"
BLOCK_SAMPLES = 1 << 22
EXACT_SEEKS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "AIFF", "AU", "CAF", "NIST")
"""Formats in which libsndfile seeks to a sample without decoding earlier ones. In Ogg and MP3 it seeks to one with some
effort, and it is not relied on in others."""
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
    remarks: Remarks | None = None,
) -> Int16[np.ndarray, " S"]:
    """Reads an audio file, or a part of it, as mono int16 samples.

    Formats: wav, flac, mp3, ogg, opus, sph and all others that libsndfile reads; m4a, aac, webm and others, known by
    their ending or their content, with the extra `formats`. Audio is resampled by soxr (HQ). 16-bit mono samples that
    need no resampling are returned unchanged. Samples that exceed full scale are clipped; in a file of floating-point
    samples they are a remark, and a peak above `mono.MAX_PEAK` is an error.

    Args:
        rate_hz: Sample rate of the result in Hz.
        speed: Speed factor: 1.1 is 10 % faster and divides the length by 1.1. Tempo and pitch change, as in sox.
        start_s: Start of the part in seconds of the file. Only the part is decoded where the format allows it.
        length_s: Length of the part in seconds of the file. None: up to the end.
        may_overshoot: Whether up to half of the part, at most half a second, may be beyond the end of the file.
        channel: Number of the channel to read, from 0. None: the mean of all channels.
        remarks: Takes the remarks on the audio. None: they are not wanted.

    Returns:
        Samples of full scale ±32768.

    Raises:
        AudioError: If the file is missing, unreadable, truncated by more than `checks.MISSING_S`, empty, not finite or
            of another scale, has no such channel or channels that cancel out, or ends before the part.
    """
    name, part, remarks = name_of(file), AudioPart(start_s, length_s, may_overshoot), remarks or Remarks()
    try:
        with opened(file) as sound:
            samples, from_hz, has_floats = _by_libsndfile(file, sound, part, remarks)
    except NeedsFFmpeg:
        samples, from_hz, has_floats = decode_with_pyav(file, name)
        samples = _part_of(samples, from_hz, name, part)
    mix = Mono(name, channel, remarks)
    mono = mix(samples, is_float=has_floats)
    mix.finish()
    if mono.dtype == np.int16 and from_hz * speed == rate_hz:
        return mono
    mono = as_float(mono)
    if from_hz * speed != rate_hz:
        mono = soxr.resample(mono, from_hz * speed, rate_hz)
    if not len(mono):
        raise AudioError(name, f"too short to resample: {len(samples)} samples")
    return as_int16(mono)


def probe(file: PathLike | NamedAudio) -> AudioInfo:
    """Reads duration, sample rate and number of channels from the header. A file without its length there is decoded.

    Raises:
        AudioError: If the file is missing or is not audio.
    """
    try:
        with opened(file) as sound:
            promised = promised_samples(sound, name_of(file), lambda: again(file))
            num_samples = sum(map(len, _blocks(sound, promised))) if promised is None else promised
            return AudioInfo(num_samples / sound.samplerate, sound.samplerate, sound.channels)
    except Joined:
        blocks = list(blocks_with_pyav(file, name_of(file)))
        return AudioInfo(
            sum(len(block.samples) for block in blocks) / blocks[0].rate_hz,
            blocks[0].rate_hz,
            blocks[0].samples.shape[1],
        )
    except NeedsFFmpeg:
        return AudioInfo(*probe_with_pyav(file, name_of(file)))


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


def is_stream(path: PathLike) -> bool:
    """Whether a path is a pipe, a socket or a device, which are read once, and may wait for data."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def again(file: PathLike | NamedAudio) -> io.BufferedIOBase:
    """Opens the same file at its beginning, independently of the position at which libsndfile reads."""
    return io.BytesIO(file.getvalue()) if isinstance(file, NamedAudio) else open(file, "rb")


@contextmanager
def opened(file: PathLike | NamedAudio) -> Iterator[soundfile.SoundFile]:
    """Opens an audio file with libsndfile, whose errors, also inside the block, are raised as AudioError.

    Raises:
        NeedsFFmpeg: If the file is to be read by FFmpeg: by its ending, or by its content if libsndfile cannot read it,
            or only the first of its recordings.
    """
    if reason := _why_not_opened(file):
        raise AudioError(name_of(file), reason)
    if name_of(file).lower().endswith(SUFFIXES):
        raise NeedsFFmpeg
    try:
        # soundfile raises a TypeError for names that end in .raw, because it needs their format as an argument.
        sound = soundfile.SoundFile(file)
        if not sound.frames and sound.format.startswith("WAV") and (whole := _with_unknown_size(file)):
            sound = soundfile.SoundFile(whole)
    except (soundfile.LibsndfileError, TypeError) as error:
        if not isinstance(file, NamedAudio) and not os.access(file, os.R_OK):
            raise AudioError(name_of(file), "no permission to read it") from None
        with again(file) as content:
            if is_of_ffmpeg(content.read(CONTENT_BYTES)):
                raise NeedsFFmpeg from None
        raise AudioError(name_of(file), _why_not_read(error)) from None
    if sound.subtype == "MPEG_LAYER_III" and sound.format != "MP3":
        sound.close()
        raise NeedsFFmpeg  # libsndfile estimates the length of MP3 within WAV, and reads no further
    if is_joined(file, sound.format):
        sound.close()
        raise Joined
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


def _why_not_opened(file: PathLike | NamedAudio) -> str:
    """Returns why a file cannot be opened; empty if it can. Pipes are not opened, because they would wait for data."""
    if isinstance(file, NamedAudio):
        return "" if file.getbuffer().nbytes else "empty (0 bytes)"
    try:
        status = os.stat(file)
    except (OSError, ValueError) as error:
        return error.strerror or str(error) if isinstance(error, PermissionError) else "no such file"
    if stat.S_ISDIR(status.st_mode):
        return "a folder, not an audio file"
    if not stat.S_ISREG(status.st_mode):
        return NOT_A_FILE
    return "" if status.st_size else "empty file (0 bytes)"


def _why_not_read(error: Exception) -> str:
    words = _words(error)
    if "regular file" in words:  # libsndfile's words for an existing file without a known header
        words = "no known audio format in its content"
    return f"not audio that libsndfile can read ({words}); if it is audio, convert it to flac; otherwise remove it"


def _words(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).removeprefix("Error : ").rstrip(".")


def _by_libsndfile(file: PathLike | NamedAudio, sound: soundfile.SoundFile, part: AudioPart, remarks: Remarks) -> Block:
    """Reads and checks the samples of a part. The first branch, a whole file, is the usual case.

    Raises:
        NeedsFFmpeg: If the file is Ogg with gaps, in which libsndfile loses the times.
    """
    name, is_whole = name_of(file), part.length_s is None and not part.start_s
    promised = promised_samples(sound, name, lambda: again(file), whole=is_whole)
    check_joined(sound, name, lambda: again(file), part)
    if is_whole:
        samples = _decode(sound, promised)
        if sound.format == "OGG" and promised is not None and len(samples) < promised and ogg_has_gaps(file):
            raise NeedsFFmpeg
        check_number(sound, name, promised, len(samples), remarks)
    elif sound.format == "OGG" and ogg_has_gaps(file):
        raise NeedsFFmpeg
    elif promised is None or not sound.seekable() or sound.format not in (*EXACT_SEEKS, "MP3", "OGG"):
        samples = _part_of(_decode(sound, promised), sound.samplerate, name, part)
    else:
        samples = _sought(sound, name, part)
    return Block(samples, sound.samplerate, is_float(sound))


def ogg_has_gaps(file: PathLike | NamedAudio) -> bool:
    """Whether the times of an Ogg Opus file have gaps. Files are remembered, because parts of one are read often."""
    if isinstance(file, NamedAudio):
        return has_gaps(io.BytesIO(file.getvalue()))
    return _ogg_has_gaps(os.fspath(file), os.stat(file).st_mtime_ns)


@functools.lru_cache(maxsize=1 << 16)
def _ogg_has_gaps(path: str, time_ns: int) -> bool:
    with open(path, "rb") as content:
        return has_gaps(content)


def _sought(sound: soundfile.SoundFile, name: str, part: AudioPart) -> Shaped[np.ndarray, "S C"]:
    """Reads a part without the samples before it."""
    first = round(part.start_s * sound.samplerate)
    wanted = sound.frames - first if part.length_s is None else round(part.length_s * sound.samplerate)
    before = min(first, MP3_RUN_UP_SAMPLES) if sound.format == "MP3" else 0
    if first < sound.frames:
        sound.seek(first - before)
    num = before + max(wanted, 0) if first < sound.frames else 0
    samples = sound.read(num, dtype=dtype_of(sound), always_2d=True)[before:]
    check_part(len(samples), wanted, sound.samplerate, name, part)
    return samples


def _part_of(samples: Shaped[np.ndarray, "S C"], rate_hz: int, name: str, part: AudioPart) -> Shaped[np.ndarray, "P C"]:
    first = round(part.start_s * rate_hz)
    wanted = len(samples) - first if part.length_s is None else round(part.length_s * rate_hz)
    there = samples[first : first + max(wanted, 0)]
    check_part(len(there), wanted, rate_hz, name, part)
    return there


def is_float(file: soundfile.SoundFile) -> bool:
    """Whether a file has floating-point samples. False for lossy codecs, whose samples may exceed full scale."""
    return file.subtype in ("FLOAT", "DOUBLE")


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
