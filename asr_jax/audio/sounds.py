"""Reads the recordings that augmentations need, once, on the host: noise as one signal, impulse responses as rows."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import soxr
from jaxtyping import Float32, Float64, Int16

from asr_jax.audio.augmentation import Augmentation
from asr_jax.audio.checks import AudioPart
from asr_jax.audio.distort import BackgroundNoise, Reverberation
from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import blocks_of, probe, read_audio
from asr_jax.audio.mono import Remarks, as_float
from asr_jax.core.environment import READING_THREADS
from asr_jax.core.errors import UserError

MAX_RESPONSES = 1000
"""Maximum number of impulse responses."""
RESPONSE_S = 0.5
"""Maximum length of an impulse response from its direct sound on, in seconds."""
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".sph", ".m4a")


def read_sounds(
    augment: Iterable[Augmentation], *, rate_hz: int, threads: int = READING_THREADS
) -> dict[str, np.ndarray]:
    """Reads the noise and the impulse responses that augmentations need.

    Args:
        augment: Augmentations; those without recordings are ignored.
        rate_hz: Sample rate of the result in Hz.
        threads: Number of threads that read files.

    Returns:
        Arrays keyed by `sound` of the augmentation.

    Raises:
        UserError: If a folder has no audio, only silence, or audio that cannot be read.
    """
    found: dict[str, np.ndarray] = {}
    for augmentation in augment:
        if isinstance(augmentation, BackgroundNoise):
            found[augmentation.sound] = _noise(augmentation, rate_hz, threads)
        elif isinstance(augmentation, Reverberation):
            found[augmentation.sound] = _impulses(augmentation, rate_hz, threads)
    return found


def _noise(settings: BackgroundNoise, rate_hz: int, threads: int) -> Int16[np.ndarray, " S"]:
    files = _files(settings.folder)
    durations_s = np.array(_of_all(lambda path: probe(path).duration_s, files, threads))
    each_s = _share(durations_s, settings.minutes * 60)
    is_long = dict(zip(files, (durations_s > (each_s or np.inf)).tolist(), strict=True))

    def part(path: Path) -> Int16[np.ndarray, " S"]:
        return read_audio(path, rate_hz=rate_hz, length_s=each_s if is_long[path] else None)

    parts = _of_all(part, files, threads)
    noise = np.concatenate(parts)
    if not noise.any():
        raise UserError(f"{settings.folder}: all {len(files)} recordings are silent; expected recordings of noise")
    return noise


def _impulses(settings: Reverberation, rate_hz: int, threads: int) -> Float32[np.ndarray, "N L"]:
    files = _files(settings.folder)
    spread = np.unique(np.linspace(0, len(files) - 1, min(len(files), MAX_RESPONSES)).round().astype(int))
    size = int(RESPONSE_S * rate_hz)
    rows = np.zeros((len(spread), size), np.float32)
    responses = _of_all(partial(_response, rate_hz=rate_hz), [files[number] for number in spread], threads)
    for row, samples in zip(rows, responses, strict=True):
        direct = int(np.argmax(np.abs(samples)))  # samples before the direct sound are only its propagation delay
        kept = samples[direct : direct + size]
        row[: len(kept)] = kept / max(np.sqrt(np.square(kept).sum()), 1e-20)
    if not rows.any(axis=1).all():
        raise UserError(
            f"{settings.folder}: {files[spread[int(np.argmin(rows.any(axis=1)))]]} is silent; remove it from the folder"
        )
    return rows


def _response(path: Path, *, rate_hz: int) -> Float32[np.ndarray, " S"]:
    """Reads the first channel of an impulse response at its own scale.

    The mean of several microphones would be the response of a different room.
    """
    blocks = list(blocks_of(path, AudioPart(), Remarks()))
    first, its_rate_hz = np.concatenate([as_float(block.samples[:, 0]) for block in blocks]), blocks[0].rate_hz
    if not np.isfinite(first).all():
        raise AudioError(path, "has samples that are not finite")
    return first if its_rate_hz == rate_hz else soxr.resample(first, its_rate_hz, rate_hz).astype(np.float32)


def _files(folder: str) -> list[Path]:
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        problem = "has no audio" if Path(folder).is_dir() else "no such folder"
        raise UserError(f"{folder}: {problem}; expected a folder of recordings ({' '.join(SUFFIXES)})")
    return paths


def _share(durations_s: Float64[np.ndarray, " N"], limit_s: float) -> float | None:
    """Returns the maximum length in seconds to which recordings are cut for a total duration of `limit_s`.

    Shorter recordings are used whole. None if the total is within the limit without cutting.
    """
    if durations_s.sum() <= limit_s:
        return None
    rising = np.sort(durations_s)
    left_s = limit_s - np.concatenate([[0.0], np.cumsum(rising)[:-1]])  # for this recording and all longer ones
    shares = left_s / np.arange(len(rising), 0, -1)
    return float(shares[np.argmax(rising > shares)])


def _of_all[T](read: Callable[[Path], T], files: Sequence[Path], threads: int) -> list[T]:
    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(read, files))
        except AudioError as error:
            raise UserError(f"{error}: remove it from the folder") from error
