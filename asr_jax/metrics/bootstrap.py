"""How far an error rate may be off by chance: speakers are drawn anew, with replacement, many times.

Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

AT_ONCE = 1 << 22
"""Draws that are in memory at once."""


@dataclass(frozen=True)
class Bootstrap:
    """What is drawn, and how often: a deterministic function of the seed."""

    level: float = 0.95
    """Share of resamples that lie within an interval."""
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.resamples < 1:
            raise ValueError(f"level {self.level}, resamples {self.resamples}: expected within 0..1, and >= 1")


def resampling_units(speakers: Sequence[str]) -> tuple[Int64[np.ndarray, " N"], str]:
    """The unit that each utterance is drawn with, numbered from 0, and what units are.

    A speaker's utterances have errors in common, so they are drawn together; an utterance without a speaker is drawn
    by itself, as are all of them where there is one speaker alone.
    """
    known = [speaker for speaker in speakers if speaker]
    if len(set(speakers)) < 2 or not known:
        return np.arange(len(speakers)), "utterances"
    over = "speakers" if len(known) == len(speakers) else "speakers, and utterances without one"
    numbers: dict[str | int, int] = {}
    units = [numbers.setdefault(speaker or row, len(numbers)) for row, speaker in enumerate(speakers)]
    return np.array(units, np.int64), over


def sums_by(groups: Int64[np.ndarray, " N"], counts: Int64[np.ndarray, "N K"]) -> Int64[np.ndarray, "G K"]:
    """Sums of the rows of each group; groups are numbered from 0."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, counts.shape[1]), np.int64)
    np.add.at(sums, groups, counts)
    return sums


def resampled(sums: Int64[np.ndarray, "U K"], bootstrap: Bootstrap) -> Float64[np.ndarray, "R K"]:
    """Sums of as many units as there are, drawn with replacement; a row per resample.

    How often each unit is drawn is multinomial; the same seed and number of units give the same draws.
    """
    num_units = len(sums)
    random = np.random.default_rng(bootstrap.seed)
    rows_at_once = max(AT_ONCE // max(num_units, 1), 1)
    parts = []
    for start in range(0, bootstrap.resamples, rows_at_once):
        rows = min(rows_at_once, bootstrap.resamples - start)
        drawn = random.integers(num_units, size=(rows, num_units)) + np.arange(rows)[:, None] * num_units
        times = np.bincount(drawn.ravel(), minlength=rows * num_units).reshape(rows, num_units)
        parts.append(times.astype(np.float64) @ sums)  # exact: whole numbers below 2^53
    return np.concatenate(parts)


def rates(errors: Float64[np.ndarray, " R"], lengths: Float64[np.ndarray, " R"]) -> Float64[np.ndarray, " S"]:
    """Errors over reference lengths, of those resamples that drew a reference word."""
    return errors[lengths > 0] / lengths[lengths > 0]


def percentiles(values: Shaped[np.ndarray, " S"], bootstrap: Bootstrap) -> list[float] | None:
    """The interval that holds `level` of the values, as much being left out below as above; None of no values."""
    if not len(values):
        return None
    tail = 50 * (1 - bootstrap.level)
    return [float(bound) for bound in np.percentile(values, (tail, 100 - tail))]
