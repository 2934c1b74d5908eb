"""Audio files on the host: reads files or parts of them as mono int16 samples, reads headers, and writes FLAC."""

import io
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import soundfile
import soxr
from jaxtyping import Int16, Shaped

from asr_jax.audio.checks import AudioPart, check_joined, check_number, check_part, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.joined import is_joined, scanned
from asr_jax.audio.mono import Mono, Remarks, as_float, as_int16
from asr_jax.audio.ogg import has_gaps
from asr_jax.audio.pyav import (
    CONTENT_BYTES,
    SUFFIXES,
    Block,
    Joined,
    NeedsFFmpeg,
    blocks_with_pyav,
    is_of_ffmpeg,
    probe_with_pyav,
)
from asr_jax.audio.wav import with_unknown_size

__all__ = [
    "AudioError",
    "AudioInfo",
    "NamedAudio",
    "PathLike",
    "Remarks",
    "header",
    "probe",
    "read_audio",
    "stream_audio",
    "write_flac",
]

PathLike = str | os.PathLike[str]

NOT_A_FILE = "a pipe or a device, not a file; write its content to a file"
BLOCK_S, WHOLE_S = 10, 300
"""Seconds of audio that are decoded at once, for blocks and for a whole."""
RESAMPLED = 1 << 16
"""Number of samples that are resampled at once: with more, the caches of the processor are too small."""
SEEKING = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "AIFF", "AU", "CAF", "NIST", "MP3", "OGG")
"""Formats in which libsndfile seeks to a sample. It is not relied on in others."""
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


def read_audio(file: PathLike | NamedAudio, *, rate_hz: int = 16000, **options: Any) -> Int16[np.ndarray, " S"]:
    """Reads an audio file, or a part of it, at once.

    Raises:
        AudioError: As `stream_audio`.
    """
    blocks = list(stream_audio(file, rate_hz=rate_hz, block_s=WHOLE_S, **options))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def stream_audio(
    file: PathLike | NamedAudio,
    *,
    rate_hz: int,
    speed: float = 1.0,
    start_s: float = 0.0,
    length_s: float | None = None,
    may_overshoot: bool = False,
    channel: int | None = None,
    remarks: Remarks | None = None,
    block_s: int = BLOCK_S,
) -> Iterator[Int16[np.ndarray, " S"]]:
    """Reads an audio file, or a part of it, as blocks of mono int16 samples.

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
        remarks: Takes the remarks on the audio after the last block. None: they are not wanted.
        block_s: Seconds that are decoded at once.

    Yields:
        Blocks of samples of full scale ±32768, in order.

    Raises:
        AudioError: When the block with the problem is reached: if the file is missing, unreadable, truncated by more
            than `checks.MISSING_S`, empty, not finite or of another scale, has no such channel or channels that cancel
            out, or ends before the part.
    """
    part, remarks, num = AudioPart(start_s, length_s, may_overshoot), remarks or Remarks(), 0
    mix = Mono(name_of(file), channel, remarks)
    blocks = blocks_of(file, part, remarks, block_s=block_s)
    mixed = (block._replace(samples=mix(block.samples, is_float=block.is_float)) for block in blocks)
    for samples in _resampled(mixed, speed, rate_hz):
        num += len(samples)
        yield samples
    if not num:
        raise AudioError(name_of(file), "too short to resample: no samples are left")
    mix.finish()


def blocks_of(
    file: PathLike | NamedAudio, part: AudioPart, remarks: Remarks, *, block_s: int = WHOLE_S
) -> Iterator[Block]:
    """Reads and checks the samples of a part of a file as they are in it, all channels.

    Raises:
        AudioError: As `stream_audio`.
    """
    try:
        yield from _by_libsndfile(file, part, remarks, block_s)
    except NeedsFFmpeg:
        blocks = _gathered(blocks_with_pyav(file, name_of(file)), block_s)
        yield from _part_of(blocks, name_of(file), part)


def probe(file: PathLike | NamedAudio) -> AudioInfo:
    """Reads duration, sample rate and number of channels from the header. A file without its length there is decoded.

    Raises:
        AudioError: If the file is missing or is not audio.
    """
    found = header(file)
    if not math.isnan(found.duration_s):
        return found
    num_samples = sum(len(block.samples) for block in blocks_of(file, AudioPart(), Remarks()))
    return replace(found, duration_s=num_samples / found.rate_hz)


def header(file: PathLike | NamedAudio) -> AudioInfo:
    """Reads duration, sample rate and number of channels without decoding. The duration is NaN if it is not known.

    Raises:
        AudioError: If the file is missing or is not audio.
    """
    try:
        with opened(file) as sound:
            promised = promised_samples(sound, name_of(file), lambda: again(file))
            duration_s = math.nan if promised is None else promised / sound.samplerate
            return AudioInfo(duration_s, sound.samplerate, sound.channels)
    except NeedsFFmpeg as error:
        found = AudioInfo(*probe_with_pyav(file, name_of(file)))
        return replace(found, duration_s=math.nan) if isinstance(error, Joined) else found


def write_flac(path: PathLike, samples: Int16[np.ndarray, " S"], rate_hz: int) -> None:
    """Writes 16-bit mono FLAC.

    Args:
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
        if isinstance(file, NamedAudio):
            file.seek(0)
        # soundfile raises a TypeError for names that end in .raw, because it needs their format as an argument.
        sound = soundfile.SoundFile(file)
        if not sound.frames and sound.format.startswith("WAV"):
            with again(file) as content:
                whole = with_unknown_size(content.read())
            sound = soundfile.SoundFile(io.BytesIO(whole)) if whole else sound
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


def _by_libsndfile(file: PathLike | NamedAudio, part: AudioPart, remarks: Remarks, block_s: int) -> Iterator[Block]:
    """Reads and checks the samples of a part.

    Raises:
        NeedsFFmpeg: As `opened`, or if the file is Ogg with gaps, in which libsndfile loses the times.
    """
    name, is_whole = name_of(file), part.length_s is None and not part.start_s
    with opened(file) as sound:
        if sound.format == "OGG" and scanned(file, has_gaps):
            raise NeedsFFmpeg
        rate_hz, has_floats = sound.samplerate, sound.subtype in ("FLOAT", "DOUBLE")
        promised = promised_samples(sound, name, lambda: again(file), whole=is_whole)
        check_joined(sound, name, lambda: again(file), part)
        if is_whole:
            num = 0
            for samples in _decoded(sound, block_s):
                num += len(samples)
                yield Block(samples, rate_hz, has_floats)
            check_number(sound, name, promised, num, remarks)
            return
        first, begin = round(part.start_s * rate_hz), 0
        if first and promised is not None and sound.seekable() and sound.format in SEEKING:
            begin = max(min(first, sound.frames) - (MP3_RUN_UP_SAMPLES if sound.format == "MP3" else 0), 0)
            sound.seek(begin)
        to_end = None if promised is None else max(sound.frames - first, 0)
        most = to_end if part.length_s is None else round(part.length_s * rate_hz)
        decoded = _decoded(sound, block_s, None if most is None else first - begin + most)
        blocks = (Block(samples, rate_hz, has_floats) for samples in decoded)
        yield from _part_of(blocks, name, part, begin=begin, to_end=to_end)


def _part_of(
    blocks: Iterator[Block], name: str, part: AudioPart, *, begin: int = 0, to_end: int | None = None
) -> Iterator[Block]:
    """Yields the samples of a part, and checks that they are there.

    Args:
        begin: Number of samples before the first block.
        to_end: Number of samples from the start of the part to the end of the file. None: it is not known.
    """
    num, wanted, rate_hz = 0, to_end, 1
    for block in blocks:
        rate_hz = block.rate_hz
        first = round(part.start_s * rate_hz)
        if part.length_s is not None:
            wanted = round(part.length_s * rate_hz)
        samples = block.samples[max(first - begin, 0) :][: None if wanted is None else max(wanted - num, 0)]
        begin, num = begin + len(block.samples), num + len(samples)
        if len(samples):
            yield block._replace(samples=samples)
        if num == wanted:
            break
    check_part(num, num if wanted is None else wanted, rate_hz, name, part)


def _gathered(blocks: Iterator[Block], block_s: int) -> Iterator[Block]:
    """Joins blocks to blocks of at least `block_s` seconds: codecs return about a thousand samples at a time."""
    held, num = list[Shaped[np.ndarray, "S C"]](), 0
    for block in blocks:
        held.append(block.samples)
        num += len(block.samples)
        if num >= block_s * block.rate_hz:
            yield block._replace(samples=np.concatenate(held))
            held, num = [], 0
    if num:
        yield block._replace(samples=np.concatenate(held))


def _decoded(sound: soundfile.SoundFile, block_s: int, most: int | None = None) -> Iterator[Shaped[np.ndarray, "S C"]]:
    """Decodes all samples from the present position on: int16 if the file is 16-bit PCM, otherwise float32.

    Args:
        most: Number of samples that are used. None: all.
    """
    # soundfile seeks after every read. Seeking can fail in compressed files and in files of unknown length.
    sound.seekable = lambda: False
    size = min(block_s * sound.samplerate, (sound.frames if most is None else most) + 1)
    dtype = "int16" if sound.subtype == "PCM_16" else "float32"
    while True:
        samples = sound.read(size, dtype=dtype, always_2d=True)
        yield samples
        if len(samples) < size:
            return


def _resampled(blocks: Iterator[Block], speed: float, rate_hz: int) -> Iterator[Int16[np.ndarray, " S"]]:
    stream = None
    for samples, its_rate_hz, _ in blocks:
        if its_rate_hz * speed == rate_hz:
            yield samples if samples.dtype == np.int16 else as_int16(samples)
            continue
        stream = stream or soxr.ResampleStream(its_rate_hz * speed, rate_hz, 1, dtype="float32")
        for first in range(0, len(samples), RESAMPLED):
            yield as_int16(stream.resample_chunk(as_float(samples[first : first + RESAMPLED])))
    if stream:
        yield as_int16(stream.resample_chunk(np.zeros(0, np.float32), last=True))
