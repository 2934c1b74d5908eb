"""Reads audio files of any length in blocks: the samples of `read_audio` in memory independent of the length."""

import itertools
from collections.abc import Iterator

import numpy as np
import soxr
from jaxtyping import Float32, Int16, Shaped

from asr_jax.audio.checks import AudioPart, check_number, check_part, check_values, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import FULL_SCALE, NamedAudio, PathLike, again, as_float, dtype_of, is_there, name_of, opened
from asr_jax.audio.pyav import SUFFIXES, blocks_with_pyav

BLOCK_S = 10  # seconds per block
EXACT_SEEKS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "AIFF", "AU", "CAF", "NIST")
"""Formats in which libsndfile seeks to a sample without decoding earlier ones; other formats are decoded from their
beginning."""

Blocks = Iterator[Shaped[np.ndarray, "S C"]]


def stream_audio(
    file: PathLike | NamedAudio,
    *,
    rate_hz: int,
    start_s: float = 0.0,
    length_s: float | None = None,
    may_overshoot: bool = False,
    channel: int | None = None,
) -> Iterator[Int16[np.ndarray, " S"]]:
    """Reads an audio file, or a part of it, as blocks of mono int16 samples.

    Args:
        rate_hz: Sample rate of the result in Hz.
        start_s: Start of the part in seconds of the file.
        length_s: Length of the part in seconds of the file. None: up to the end.
        may_overshoot: Whether up to half of the part, at most half a second, may be beyond the end of the file.
        channel: Number of the channel to read, from 0. None: the mean of all channels.

    Yields:
        Blocks of samples of full scale ±32768, in order. Together they are the result of `read_audio`.

    Raises:
        AudioError: As `read_audio`, when the block with the problem is reached.
    """
    part = AudioPart(start_s, length_s, may_overshoot)
    if name_of(file).lower().endswith(SUFFIXES) and is_there(file):
        blocks, from_hz = _by_pyav(file, part)
    else:
        blocks, from_hz = _by_libsndfile(file, part)
    is_empty = True
    for samples in _resampled((_mono(block, channel, name_of(file)) for block in blocks), from_hz, rate_hz):
        is_empty = is_empty and not len(samples)
        yield samples
    if is_empty:
        raise AudioError(name_of(file), "too short to resample: no samples are left")


def _by_libsndfile(file: PathLike | NamedAudio, part: AudioPart) -> tuple[Blocks, int]:
    with opened(file) as sound:
        from_hz = sound.samplerate
    return _read(file, part), from_hz


def _read(file: PathLike | NamedAudio, part: AudioPart) -> Blocks:
    """Reads and checks the blocks of a part."""
    name, is_whole = name_of(file), part.length_s is None and not part.start_s
    if isinstance(file, NamedAudio):
        file.seek(0)
    with opened(file) as sound:
        promised = promised_samples(sound, name, lambda: again(file), whole=is_whole)
        first = round(part.start_s * sound.samplerate)
        wanted = None if part.length_s is None else round(part.length_s * sound.samplerate)
        if wanted is None and promised is not None and not is_whole:
            wanted = sound.frames - first
        skipped = first
        if promised is not None and sound.format in EXACT_SEEKS and 0 < first < sound.frames:
            sound.seek(first)
            skipped = 0
        # soundfile seeks after every read, which can fail in compressed files.
        sound.seekable = lambda: False
        num, size = 0, BLOCK_S * sound.samplerate
        while wanted is None or num < wanted:
            block = sound.read(size, dtype=dtype_of(sound), always_2d=True)
            taken = block[skipped:][: None if wanted is None else wanted - num]
            skipped -= min(skipped, len(block))
            num += len(taken)
            if len(taken):
                check_values(sound, name, taken)
                yield taken
            if len(block) < size:
                break
        if is_whole:
            check_number(sound, name, promised, num)
        else:
            check_part(num, num if wanted is None else wanted, sound.samplerate, name, part)


def _by_pyav(file: PathLike | NamedAudio, part: AudioPart) -> tuple[Blocks, int]:
    blocks = blocks_with_pyav(file, name_of(file))
    first, from_hz = next(blocks)
    decoded = (samples for samples, _ in itertools.chain([(first, from_hz)], blocks))
    return _gathered(_part_of(decoded, from_hz, name_of(file), part), BLOCK_S * from_hz), from_hz


def _part_of(blocks: Blocks, rate_hz: int, name: str, part: AudioPart) -> Blocks:
    begin, num = round(part.start_s * rate_hz), 0
    wanted = None if part.length_s is None else round(part.length_s * rate_hz)
    skipped = begin
    for block in blocks:
        taken = block[skipped:][: None if wanted is None else wanted - num]
        skipped -= min(skipped, len(block))
        num += len(taken)
        yield taken
        if num == wanted:
            return
    check_part(num, num if wanted is None else wanted, rate_hz, name, part)


def _gathered(blocks: Blocks, size: int) -> Blocks:
    """Joins blocks to blocks of at least `size` samples: codecs return about a thousand samples at a time."""
    held, num = list[Shaped[np.ndarray, "S C"]](), 0
    for block in blocks:
        held.append(block)
        num += len(block)
        if num >= size:
            yield np.concatenate(held)
            held, num = [], 0
    if num:
        yield np.concatenate(held)


def _mono(block: Shaped[np.ndarray, "S C"], channel: int | None, name: str) -> Shaped[np.ndarray, " S"]:
    """Returns one channel, or the mean of all: int16 if a single int16 channel is copied, otherwise float32."""
    if channel is not None:
        if channel >= block.shape[1]:
            raise AudioError(name, f"no channel {channel}: the file has {block.shape[1]}, numbered from 0")
        block = block[:, channel : channel + 1]
    if block.dtype == np.int16 and block.shape[1] == 1:
        return block[:, 0]
    return as_float(block).mean(axis=1, dtype=np.float32)


def _resampled(
    blocks: Iterator[Shaped[np.ndarray, " S"]], from_hz: int, rate_hz: int
) -> Iterator[Int16[np.ndarray, " S"]]:
    if from_hz == rate_hz:
        for block in blocks:
            yield block if block.dtype == np.int16 else _as_int16(block)
        return
    stream = soxr.ResampleStream(from_hz, rate_hz, 1, dtype="float32")
    for block in blocks:
        yield _as_int16(stream.resample_chunk(as_float(block)))
    yield _as_int16(stream.resample_chunk(np.zeros(0, np.float32), last=True))


def _as_int16(samples: Float32[np.ndarray, " S"]) -> Int16[np.ndarray, " S"]:
    return np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
