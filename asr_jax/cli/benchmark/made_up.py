"""Synthetic metadata similar to LibriSpeech's, for benchmarks with more utterances than a test can store as audio."""

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int, Int32

RATE_HZ = 16000
CHARS_PER_S = 14.7
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def durations_s(num: int, *, seed: int = 0) -> Float64[np.ndarray, " R"]:
    """Durations in seconds: 72 % normal (mean 14.3 s, deviation 1.3 s), others uniform from 1.5 to 14 s.

    All values are clipped to 1.3 to 24.5 s. The distribution resembles that of LibriSpeech's 960 h, whose readings are
    cut at pauses into at most about 17 s: a peak, and a broad rest from the ends of chapters. The mean is 12.4 s, the
    standard deviation 3.7 s (LibriSpeech: 12.3 s and 3.8 s).
    """
    rng = np.random.default_rng(seed)
    found = np.where(rng.random(num) < 0.72, rng.normal(14.3, 1.3, num), rng.uniform(1.5, 14, num))
    return np.clip(found, 1.3, 24.5).round(3)


def lengths(num: int, *, seed: int = 0) -> Int32[np.ndarray, " R"]:
    """Durations in samples."""
    return np.rint(durations_s(num, seed=seed) * RATE_HZ).astype(np.int32)


def num_labels(samples: Int[np.ndarray, " R"], *, seed: int = 0) -> Int32[np.ndarray, " R"]:
    """Number of characters for each duration in samples: 14.7 per second, with a standard deviation of 12 %."""
    rate = np.random.default_rng((seed, 1)).normal(CHARS_PER_S, 0.12 * CHARS_PER_S, len(samples))
    return np.maximum(samples / RATE_HZ * np.clip(rate, 8, 22), 1).astype(np.int32)


def write_manifest(path: str | PathLike[str], num: int, *, seed: int = 0) -> None:
    """Writes a JSONL manifest with ids and paths as in LibriSpeech; the audio files do not exist.

    Args:
        path: File to write.
        num: Number of utterances.
        seed: Seed of durations and texts.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(fields) + "\n" for fields in utterances(num, seed=seed))


def utterances(num: int, *, seed: int = 0) -> Iterator[dict[str, str | float]]:
    """Yields the fields of each line; a speaker has 110 utterances, and a chapter 50."""
    seconds = durations_s(num, seed=seed)
    chars = num_labels(np.rint(seconds * RATE_HZ).astype(np.int32), seed=seed).tolist()
    rng = np.random.default_rng((seed, 2))
    text = _words(rng)
    first = rng.integers(0, len(text) - 1000, num).tolist()
    for i, duration in enumerate(seconds.tolist()):
        speaker, chapter = 19 + i // 110, 100_000 + i // 50
        name = f"{speaker}-{chapter}-{i % 50:04}"
        yield {
            "id": name,
            "audio_path": f"/corpora/LibriSpeech/train-other-500/{speaker}/{chapter}/{name}.flac",
            "duration": duration,
            "text": text[first[i] : first[i] + chars[i]].strip() or "a",
            "speaker": str(speaker),
        }


def _words(rng: np.random.Generator) -> str:
    """A long text of random words with 1 to 9 letters."""
    letters = rng.choice(list(LETTERS), 500_000)
    lengths = rng.integers(1, 10, 60_000)
    ends = np.cumsum(lengths)
    return " ".join("".join(letters[end - length : end]) for length, end in zip(lengths, ends, strict=True))
