"""Reads audio files of any length in blocks: the samples of `read_audio` in memory independent of the length."""

import itertools
from collections.abc import Iterator

import numpy as np
import soxr
from jaxtyping import Int16, Shaped

from asr_jax.audio.checks import AudioPart, check_joined, check_number, check_part, promised_samples
from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import EXACT_SEEKS, NamedAudio, PathLike, again, dtype_of, is_float, name_of, ogg_has_gaps, opened
from asr_jax.audio.mono import Mono, Remarks, as_float, as_int16
from asr_jax.audio.pyav import NeedsFFmpeg, blocks_with_pyav

BLOCK_S = 10  # seconds per block
Blocks = Iterator[Shaped[np.ndarray, "S C"]]


def stream_audio(
    file: PathLike | NamedAudio,
    *,
    rate_hz: int,
    start_s: float = 0.0,
    length_s: float | None = None,
    may_overshoot: bool = False,
    channel: int | None = None,
    remarks: Remarks | None = None,
) -> Iterator[Int16[np.ndarray, " S"]]:
    """Reads an audio file, or a part of it, as blocks of mono int16 samples.

    Args:
        rate_hz: Sample rate of the result in Hz.
        start_s: Start of the part in seconds of the file.
        length_s: Length of the part in seconds of the file. None: up to the end.
        may_overshoot: Whether up to half of the part, at most half a second, may be beyond the end of the file.
        channel: Number of the channel to read, from 0. None: the mean of all channels.
        remarks: Takes the remarks on the audio after the last block. None: they are not wanted.

    Yields:
        Blocks of samples of full scale ±32768, in order. Together they are the result of `read_audio`.

    Raises:
        AudioError: As `read_audio`, when the block with the problem is reached.
    """
    part, remarks = AudioPart(start_s, length_s, may_overshoot), remarks or Remarks()
    try:
        with opened(file) as sound:
            if sound.format == "OGG" and ogg_has_gaps(file):
                raise NeedsFFmpeg
            from_hz, has_floats = sound.samplerate, is_float(sound)
        blocks = _read(file, part, remarks)
    except NeedsFFmpeg:
        blocks, from_hz, has_floats = _by_pyav(file, part)
    mix, is_empty = Mono(name_of(file), channel, remarks), True
    for samples in _resampled((mix(block, is_float=has_floats) for block in blocks), from_hz, rate_hz):
        is_empty = is_empty and not len(samples)
        yield samples
    if is_empty:
        raise AudioError(name_of(file), "too short to resample: no samples are left")
    mix.finish()


def _read(file: PathLike | NamedAudio, part: AudioPart, remarks: Remarks) -> Blocks:
    """Reads and checks the blocks of a part."""
    name, is_whole = name_of(file), part.length_s is None and not part.start_s
    if isinstance(file, NamedAudio):
        file.seek(0)
    with opened(file) as sound:
        promised = promised_samples(sound, name, lambda: again(file), whole=is_whole)
        check_joined(sound, name, lambda: again(file), part)
        first = round(part.start_s * sound.samplerate)
        wanted = None if part.length_s is None else round(part.length_s * sound.samplerate)
        if wanted is None and promised is not None and not is_whole:
            wanted = sound.frames - first
        skipped = first
        if promised is not None and sound.format in EXACT_SEEKS and sound.seekable() and 0 < first < sound.frames:
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
                yield taken
            if len(block) < size:
                break
        if is_whole:
            check_number(sound, name, promised, num, remarks)
        else:
            check_part(num, num if wanted is None else wanted, sound.samplerate, name, part)


def _by_pyav(file: PathLike | NamedAudio, part: AudioPart) -> tuple[Blocks, int, bool]:
    blocks = blocks_with_pyav(file, name_of(file))
    first = next(blocks)
    decoded = (block.samples for block in itertools.chain([first], blocks))
    part_of = _part_of(decoded, first.rate_hz, name_of(file), part)
    return _gathered(part_of, BLOCK_S * first.rate_hz), first.rate_hz, first.is_float


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


def _resampled(
    blocks: Iterator[Shaped[np.ndarray, " S"]], from_hz: int, rate_hz: int
) -> Iterator[Int16[np.ndarray, " S"]]:
    if from_hz == rate_hz:
        for block in blocks:
            yield block if block.dtype == np.int16 else as_int16(block)
        return
    stream = soxr.ResampleStream(from_hz, rate_hz, 1, dtype="float32")
    for block in blocks:
        yield as_int16(stream.resample_chunk(as_float(block)))
    yield as_int16(stream.resample_chunk(np.zeros(0, np.float32), last=True))
