"""Audio on the host: files, or parts of them, read to mono int16 at one rate; headers probed; FLAC written."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32, Int16, Shaped

from asr_jax.audio.checks import Part, check_part, check_values, check_whole, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.pyav import SUFFIXES, decode_with_pyav, probe_with_pyav

__all__ = ["AudioError", "AudioInfo", "Named", "PathLike", "probe", "read_audio", "write_flac"]

PathLike = str | os.PathLike[str]

FULL_SCALE = 32768
BLOCK_SAMPLES = 1 << 22
MP3_RUN_UP_SAMPLES = 32 * 1152
"""A frame of MP3 uses bytes of those before it: what follows a seek at once is silence, or wrong."""


class Named(io.BytesIO):
    """A file's content in memory, with the name that messages call it by."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What a file's header says."""

    duration_s: float
    rate_hz: int
    channels: int


def read_audio(
    file: PathLike | Named,
    *,
    rate_hz: int = 16000,
    speed: float = 1.0,
    start_s: float = 0.0,
    length_s: float | None = None,
    may_overshoot: bool = False,
    channel: int | None = None,
) -> Int16[np.ndarray, " S"]:
    """Samples of a file: one channel or the mean of all, resampled by soxr (HQ), full scale ±32768.

    wav, flac, mp3, ogg, opus, sph and what else libsndfile reads; m4a, aac and webm with the extra `formats`. Of a long
    file, the part of `length_s` from `start_s`, in the file's own seconds, is read alone. `speed` 1.1 is faster and
    shorter: S is the length at `rate_hz` divided by it (tempo and pitch change, as in sox). 16-bit samples that need
    neither come back untouched. Codecs that overshoot are clipped; a float WAV is not.

    Raises: AudioError where the file is missing, unreadable, truncated, empty, not finite or beyond ±1, or ends before
    the part that is asked for; of one that `may_overshoot`, up to half (half a second at most) may be missing.
    """
    name, part = name_of(file), Part(start_s, length_s, may_overshoot)
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
            raise AudioError(name, f"no channel {channel}: it has {samples.shape[1]}, from 0")
        samples = samples[:, channel : channel + 1]
    if samples.dtype == np.int16 and samples.shape[1] == 1 and from_hz * speed == rate_hz:
        return samples[:, 0]
    mono = as_float(samples).mean(axis=1, dtype=np.float32)
    if from_hz * speed != rate_hz:
        mono = soxr.resample(mono, from_hz * speed, rate_hz)
    if not len(mono):
        raise AudioError(name, f"too short to resample: {len(samples)} samples")
    return np.clip(np.rint(mono * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def probe(file: PathLike | Named) -> AudioInfo:
    """Duration, rate and channels from the header; a file whose header leaves its length open is decoded.

    Raises: AudioError where the file is missing or no audio.
    """
    if name_of(file).lower().endswith(SUFFIXES) and is_there(file):
        return AudioInfo(*probe_with_pyav(file, name_of(file)))
    with opened(file) as sound:
        promised = promised_samples(sound, name_of(file), lambda: again(file))
        num_samples = sum(map(len, _blocks(sound, promised))) if promised is None else promised
        return AudioInfo(num_samples / sound.samplerate, sound.samplerate, sound.channels)


def write_flac(path: PathLike, samples: Int16[np.ndarray, " S"], rate_hz: int) -> None:
    """16-bit mono FLAC."""
    soundfile.write(path, samples, rate_hz, format="FLAC", subtype="PCM_16")


def name_of(file: PathLike | Named) -> str:
    return file.name if isinstance(file, Named) else os.fspath(file)


def again(file: PathLike | Named) -> io.BufferedIOBase:
    """The same file from its beginning; what libsndfile reads from stays where it is."""
    return io.BytesIO(file.getvalue()) if isinstance(file, Named) else open(file, "rb")


def is_there(file: PathLike | Named) -> bool:
    """False for what the messages of `opened` say better than FFmpeg."""
    return isinstance(file, Named) or (os.path.isfile(file) and os.path.getsize(file) > 0)


@contextmanager
def opened(file: PathLike | Named) -> Iterator[soundfile.SoundFile]:
    """The open file; libsndfile's errors, while opening and inside the block, become AudioError."""
    try:
        # soundfile wants to be told the format of a name that ends in .raw, and says so with a TypeError.
        sound = soundfile.SoundFile(file)
    except (soundfile.LibsndfileError, TypeError) as error:
        raise AudioError(name_of(file), _why_not_opened(file, error)) from None
    try:
        with sound:
            yield sound
    except soundfile.LibsndfileError as error:
        raise AudioError(name_of(file), f"truncated or damaged ({_words(error)}); copy it again") from None


def _why_not_opened(file: PathLike | Named, error: Exception) -> str:
    if isinstance(file, Named):
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
    return f"not audio that libsndfile can read ({_words(error)}); convert it to flac, or take it out"


def _words(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).removeprefix("Error : ").rstrip(".")


def _samples(sound: soundfile.SoundFile, name: str, promised: int | None, part: Part) -> Shaped[np.ndarray, "S C"]:
    """The samples that are asked for, checked. Whole files of known length are the usual case."""
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


def _part_of(samples: Shaped[np.ndarray, "S C"], rate_hz: int, name: str, part: Part) -> Shaped[np.ndarray, "P C"]:
    first = round(part.start_s * rate_hz)
    wanted = len(samples) - first if part.length_s is None else round(part.length_s * rate_hz)
    there = samples[first : first + max(wanted, 0)]
    check_part(len(there), wanted, rate_hz, name, part)
    return there


def dtype_of(file: soundfile.SoundFile) -> str:
    return "int16" if file.subtype == "PCM_16" else "float32"


def _decode(file: soundfile.SoundFile, promised: int | None) -> Shaped[np.ndarray, "S C"]:
    """All samples, int16 where the file is 16-bit PCM, else float32."""
    blocks = list(_blocks(file, promised))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _blocks(file: soundfile.SoundFile, promised: int | None) -> Iterator[Shaped[np.ndarray, "S C"]]:
    """The same, some at a time: one block or more."""
    if promised is None:
        # soundfile seeks after every read, which libsndfile cannot in a file of unknown length.
        file.seekable = lambda: False
    block = file.read(BLOCK_SAMPLES, dtype=dtype_of(file), always_2d=True)
    yield block
    while len(block) == BLOCK_SAMPLES:
        block = file.read(BLOCK_SAMPLES, dtype=dtype_of(file), always_2d=True)
        yield block


def as_float(samples: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    return samples.astype(np.float32) / FULL_SCALE if samples.dtype == np.int16 else samples
