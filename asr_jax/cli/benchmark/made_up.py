"""Metadata like LibriSpeech's, made up: for figures about as many utterances as nobody keeps on a disk for tests."""

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
    """Seconds: 72 % around 14.3 s (normal, 1.3 s wide), the others anywhere from 1.5 to 14 s; 1.3 to 24.5 s in all.

    As in LibriSpeech's 960 h, readings are cut at pauses into at most about 17 s: a peak, and a broad rest of chapter
    ends. Mean 12.4 s and standard deviation 3.7 s, there 12.3 and 3.8.
    """
    rng = np.random.default_rng(seed)
    found = np.where(rng.random(num) < 0.72, rng.normal(14.3, 1.3, num), rng.uniform(1.5, 14, num))
    return np.clip(found, 1.3, 24.5).round(3)


def lengths(num: int, *, seed: int = 0) -> Int32[np.ndarray, " R"]:
    """The durations in samples."""
    return np.rint(durations_s(num, seed=seed) * RATE_HZ).astype(np.int32)


def num_labels(samples: Int[np.ndarray, " R"], *, seed: int = 0) -> Int32[np.ndarray, " R"]:
    """Characters of what is read in so much time: 14.7 a second, 12 % more or less."""
    rate = np.random.default_rng((seed, 1)).normal(CHARS_PER_S, 0.12 * CHARS_PER_S, len(samples))
    return np.maximum(samples / RATE_HZ * np.clip(rate, 8, 22), 1).astype(np.int32)


def write_manifest(path: str | PathLike[str], num: int, *, seed: int = 0) -> None:
    """A JSONL manifest of as many utterances, named and placed as in LibriSpeech; there is no audio."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(fields) + "\n" for fields in utterances(num, seed=seed))


def utterances(num: int, *, seed: int = 0) -> Iterator[dict[str, str | float]]:
    """The fields of a line of JSON each; every tenth to hundredth is of another speaker, as long chapters go."""
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
    """A long text of words of 1 to 9 letters."""
    letters = rng.choice(list(LETTERS), 500_000)
    lengths = rng.integers(1, 10, 60_000)
    ends = np.cumsum(lengths)
    return " ".join("".join(letters[end - length : end]) for length, end in zip(lengths, ends, strict=True))
