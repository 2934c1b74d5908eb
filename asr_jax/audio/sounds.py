"""Recordings that augmentations add, read on the host once: noise as one long signal, impulse responses as rows."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int16

from asr_jax.audio.augment import Augmentation
from asr_jax.audio.distort import IMPULSES, NOISE, BackgroundNoise, Reverberation
from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import read_audio
from asr_jax.core.errors import UserError

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".sph", ".m4a")


def read_sounds(augment: Iterable[Augmentation], *, rate_hz: int, threads: int = 2) -> dict[str, np.ndarray]:
    """What the augmentations need: `noise`, int16 `[samples]`, and `impulses`, float32 `[responses, samples]`.

    Raises: UserError where a folder has no audio, or audio that cannot be read.
    """
    found: dict[str, np.ndarray] = {}
    for augmentation in augment:
        if isinstance(augmentation, BackgroundNoise):
            found[NOISE] = _noise(augmentation, rate_hz, threads)
        elif isinstance(augmentation, Reverberation):
            found[IMPULSES] = _impulses(augmentation, rate_hz, threads)
    return found


def _noise(settings: BackgroundNoise, rate_hz: int, threads: int) -> Int16[np.ndarray, " S"]:
    files = _files(settings.folder)
    limit_s = settings.minutes * 60
    parts = _read_all(files, threads, rate_hz)
    total_s = sum(map(len, parts)) / rate_hz
    if total_s > limit_s:
        # An equal beginning of each; what short ones leave is the others'.
        share, lengths = 0.0, np.sort([len(part) / rate_hz for part in parts])
        for number, seconds in enumerate(lengths):
            share = (limit_s - lengths[:number].sum()) / (len(lengths) - number)
            if seconds > share:
                break
        parts = [part[: max(int(share * rate_hz), 1)] for part in parts]
    noise = np.concatenate(parts)
    if not noise.any():
        raise UserError(f"{settings.folder}: its {len(files)} recordings are silent; expected recordings of noise")
    return noise


def _impulses(settings: Reverberation, rate_hz: int, threads: int) -> Float32[np.ndarray, "N L"]:
    files = _files(settings.folder)
    spread = np.unique(np.linspace(0, len(files) - 1, min(len(files), settings.max_responses)).round().astype(int))
    size = max(int(settings.max_ms / 1000 * rate_hz), 1)
    rows = np.zeros((len(spread), size), np.float32)
    for row, samples in zip(rows, _read_all([files[number] for number in spread], threads, rate_hz), strict=True):
        direct = int(np.argmax(np.abs(samples.astype(np.int32))))  # before it is only the way from the loudspeaker
        kept = samples[direct : direct + size].astype(np.float32)
        row[: len(kept)] = kept / max(np.sqrt(np.square(kept).sum()), 1e-20)
    if not rows.any(axis=1).all():
        raise UserError(f"{settings.folder}: {files[spread[int(np.argmin(rows.any(axis=1)))]]} is silent")
    return rows


def _files(folder: str) -> list[Path]:
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        there = "has no audio" if Path(folder).is_dir() else "no such folder"
        raise UserError(f"{folder}: {there}; expected a folder of recordings ({' '.join(SUFFIXES)})")
    return paths


def _read_all(files: Sequence[Path], threads: int, rate_hz: int) -> list[Int16[np.ndarray, " S"]]:
    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(partial(read_audio, rate_hz=rate_hz), files))
        except AudioError as error:
            raise UserError(f"{error}: take it out of the folder") from error
