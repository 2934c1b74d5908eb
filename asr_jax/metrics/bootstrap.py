"""Bootstrap confidence intervals of error rates, resampled over speakers.

Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from asr_jax.core.settings import PositiveInt, above, settings

AT_ONCE = 1 << 22
"""Number of draws that are in memory at once."""


@settings
class Bootstrap:
    """Settings of a bootstrap. Its draws are a deterministic function of the seed."""

    level: Annotated[float, above(0, below=1)] = 0.95
    """Share of resamples within the interval, in 0..1."""
    resamples: PositiveInt = 1000
    """Number of resamples."""
    seed: int = 0


def resampling_units(speakers: Sequence[str]) -> tuple[Int64[np.ndarray, " N"], str]:
    """Assigns each utterance to the unit that it is resampled with.

    The utterances of a speaker have correlated errors, so they are one unit. An utterance without a speaker is a unit
    of its own. If there are fewer than two speakers, every utterance is.

    Returns:
        The number of each utterance's unit, from 0, and a description of the units.
    """
    known = [speaker for speaker in speakers if speaker]
    if len(set(speakers)) < 2 or not known:
        return np.arange(len(speakers)), "utterances"
    over = "speakers" if len(known) == len(speakers) else "speakers, and utterances without one"
    numbers: dict[str | int, int] = {}
    units = [numbers.setdefault(speaker or row, len(numbers)) for row, speaker in enumerate(speakers)]
    return np.array(units, np.int64), over


def sums_by(groups: Int64[np.ndarray, " N"], counts: Int64[np.ndarray, "N K"]) -> Int64[np.ndarray, "G K"]:
    """Returns the sum of the rows of each group. Groups are numbered from 0."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, counts.shape[1]), np.int64)
    np.add.at(sums, groups, counts)
    return sums


def resampled(sums: Int64[np.ndarray, "U K"], bootstrap: Bootstrap) -> Float64[np.ndarray, "R K"]:
    """Resamples units with replacement, as many as there are, and returns the sums of each resample.

    The draws depend only on the seed and the number of units.

    Args:
        sums: Counts of each unit; U: units, K: counts.

    Returns:
        Sums of each of the R resamples.
    """
    num_units = len(sums)
    random = np.random.default_rng(bootstrap.seed)
    rows_at_once = max(AT_ONCE // max(num_units, 1), 1)
    parts = []
    for start in range(0, bootstrap.resamples, rows_at_once):
        rows = min(rows_at_once, bootstrap.resamples - start)
        drawn = random.integers(num_units, size=(rows, num_units)) + np.arange(rows)[:, None] * num_units
        times = np.bincount(drawn.ravel(), minlength=rows * num_units).reshape(rows, num_units)
        parts.append(times.astype(np.float64) @ sums)  # exact: all sums are integers below 2^53
    return np.concatenate(parts)


def rates(errors: Float64[np.ndarray, " R"], lengths: Float64[np.ndarray, " R"]) -> Float64[np.ndarray, " S"]:
    """Returns errors divided by reference lengths, for the resamples that contain reference words."""
    return errors[lengths > 0] / lengths[lengths > 0]


def percentiles(values: Shaped[np.ndarray, " S"], bootstrap: Bootstrap) -> list[float] | None:
    """Returns the central interval that contains the share `level` of the values; None if there are no values."""
    if not len(values):
        return None
    tail = 50 * (1 - bootstrap.level)
    return [float(bound) for bound in np.percentile(values, (tail, 100 - tail))]
