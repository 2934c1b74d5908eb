"""How well confidences say what share of words is right, and the mapping that makes them say it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

NUM_BINS = 15
CLIP = 1e-6


@dataclass(frozen=True)
class Calibration:
    """From a model's confidence to the probability that a word is right: a line in log-odds.

    Source: Platt 1999, "Probabilistic outputs for support vector machines", on the log-odds of the confidence instead
    of a margin.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, confidences: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """From 0 to 1; in the same order where the slope is above 0."""
        return _logistic(self.slope * _log_odds(confidences) + self.offset)


def fit_calibration(confidences: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]) -> Calibration:
    """The one of highest likelihood, by Newton's method. Both sides count one word more than there are (Platt's
    targets), so that a set without a wrong word gives a finite line.

    Raises: ValueError where there are no words.
    """
    if not len(confidences):
        raise ValueError("there are no words to fit a calibration to")
    num_right = int(is_right.sum())
    targets = np.where(is_right, (num_right + 1) / (num_right + 2), 1 / (len(is_right) - num_right + 2))
    rows = np.stack([_log_odds(confidences), np.ones(len(confidences))], 1)
    line = np.array([1.0, 0.0])
    loss = _cross_entropy(rows @ line, targets)
    for _ in range(100):
        likely = _logistic(rows @ line)
        curvature = (rows * (likely * (1 - likely))[:, None]).T @ rows + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, rows.T @ (targets - likely))
        while (shorter := _cross_entropy(rows @ (line + step), targets)) > loss and np.abs(step).max() > 1e-9:
            step /= 2
        line, gained, loss = line + step, loss - shorter, shorter
        if gained < 1e-10 * len(targets):
            break
    return Calibration(slope=float(line[0]), offset=float(line[1]))


def confidence_report(confidences: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]) -> dict[str, Any]:
    """`calibration_error`: the mean distance between confidence and share of right words, over 15 bins of equal width
    weighted by their words (ECE); `cross_entropy_gain`: the share of the entropy of right and wrong that confidences
    take away (NIST's normalised cross entropy: 1 at best, 0 for the same confidence everywhere, below for worse);
    `mean` confidence; `words` and `right`, the share of them. None where there are no words, and of the gain where all
    or none of them are right.

    Source: Naeini et al. 2015, "Obtaining Well Calibrated Probabilities Using Bayesian Binning"; NIST, "The NIST
    Speaker Recognition/RT evaluations: a tutorial introduction to NCE".
    """
    if not len(confidences):
        return {"words": 0, "right": None, "mean": None, "calibration_error": None, "cross_entropy_gain": None}
    bins = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=confidences - is_right, minlength=NUM_BINS)
    right = float(is_right.mean())
    gain = None
    if 0 < right < 1:
        entropy = -right * math.log(right) - (1 - right) * math.log1p(-right)
        gain = 1 - _cross_entropy(_log_odds(confidences), is_right.astype(float)) / (len(is_right) * entropy)
    return {
        "words": len(confidences),
        "right": right,
        "mean": float(confidences.mean()),
        "calibration_error": float(np.abs(gaps).sum() / len(confidences)),
        "cross_entropy_gain": gain,
    }


def _log_odds(confidences: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    clipped = np.clip(confidences, CLIP, 1 - CLIP)
    return np.log(clipped) - np.log1p(-clipped)


def _logistic(log_odds: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.exp(-np.logaddexp(0.0, -log_odds))


def _cross_entropy(log_odds: Float[np.ndarray, " N"], targets: Float[np.ndarray, " N"]) -> float:
    return float(np.sum(np.logaddexp(0.0, log_odds) - targets * log_odds))
