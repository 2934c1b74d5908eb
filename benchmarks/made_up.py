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


SHARES = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975,
    0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1,
)  # fmt: skip
"""Shares of the utterances of LibriSpeech's 960 h that are at most as long as `QUANTILES_S`."""
QUANTILES_S = (
    0.83, 1.83, 2.19, 2.37, 3.81, 5.44, 7.29, 8.96, 10.66, 11.75, 13.04, 13.81, 14.36, 14.83, 15.29, 15.52, 15.78,
    15.93, 16.1, 16.34, 16.67, 16.83, 17.08, 17.51, 18.68, 26.23, 29.74,
)  # fmt: skip


def durations_s(num: int, *, seed: int = 0) -> Float64[np.ndarray, " R"]:
    """Durations in seconds, drawn from a distribution with LibriSpeech's published percentiles (960 h).

    The source is the table in icefall's egs/librispeech/ASR/local/display_manifest_statistics.py. It has 15
    percentiles, rounded to 0.1 s, and the total of each of the three training sets, with every utterance at the speeds
    0.9, 1 and 1.1. A smooth density was fitted to each set, which has these percentiles at the three speeds together;
    `QUANTILES_S` are quantiles of the three densities, weighted by the sets' utterances (28,539, 104,014 and 148,688).
    281,241 utterances take 960 h, as in LibriSpeech; the standard deviation is 3.85 s, and 68 % are 12 to 17 s long.
    Between the 99.9th percentile and the longest utterance, nothing is published: these are interpolated.
    """
    return np.interp(np.random.default_rng(seed).random(num), SHARES, QUANTILES_S).round(3)


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
