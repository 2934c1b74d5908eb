"""Calibration of confidences, and measures of their quality."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from asr_jax.metrics.errors import right_words
from asr_jax.text.normalise import normalise
from asr_jax.text.segmentation import words_of

NUM_BINS = 15
CLIP = 1e-6


@dataclass(frozen=True)
class Calibration:
    """Maps a model's confidence to the probability that a word is right, by a linear function of the log-odds.

    Source: Platt 1999, "Probabilistic outputs for support vector machines", on the log-odds of the confidence instead
    of a margin.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, confidences: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Returns calibrated confidences in 0..1. Their order is preserved if the slope is positive."""
        return _logistic(self.slope * _log_odds(confidences) + self.offset)


def fit_calibration(confidences: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]) -> Calibration:
    """Fits a calibration by maximum likelihood, with Newton's method.

    The targets are Platt's: `(right + 1) / (right + 2)` for right words and `1 / (wrong + 2)` for wrong ones. The
    result is therefore finite even if all words are right.

    Raises:
        ValueError: If there are no words.
    """
    if not len(confidences):
        raise ValueError("there are no words to fit a calibration to: expected at least one")
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


def judged_words(words: Iterable[tuple[str, float]], reference: str, normaliser: str) -> tuple[list[float], list[bool]]:
    """Returns the confidences of an utterance's recognised words, and whether they are right.

    Both texts are normalised before. Words that the normaliser removes are excluded. A word that it splits is right if
    all of its parts are right.

    Args:
        words: Text and confidence in 0..1 of each recognised word.
    """
    pairs = [(words_of(normalise(text, normaliser)), float(confidence)) for text, confidence in words]
    expected = words_of(normalise(reference, normaliser))
    right = iter(right_words(expected, [part for parts, _ in pairs for part in parts]).tolist())
    confidences, is_right = list[float](), list[bool]()
    for parts, confidence in pairs:
        if parts:
            confidences.append(confidence)
            of_word = [next(right) for _ in parts]
            is_right.append(all(of_word))
    return confidences, is_right


def reliability(confidences: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "15 3"]:
    """Returns for 15 bins of confidence of equal width: number of words, sum of confidences, number of right words."""
    bins = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    columns = (np.ones(len(bins)), confidences, is_right)
    return np.stack([np.bincount(bins, weights=column, minlength=NUM_BINS) for column in columns], 1)


def confidence_report(confidences: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]) -> dict[str, Any]:
    """Returns measures of the quality of confidences.

    Returns:
        A dict:

        - `words`: number of words.
        - `right`: share of right words.
        - `mean`: mean confidence.
        - `calibration_error`: expected calibration error (ECE), the mean distance between confidence and share of
          right words over 15 bins of equal width, weighted by their numbers of words.
        - `cross_entropy_gain`: NIST's normalised cross entropy (NCE), the relative reduction of the entropy of
          right and wrong. 1 is perfect, 0 is the value of a constant confidence equal to `right`, and negative values
          are worse. None if all words are right or all are wrong.

        Without words, all of them but `words` are None.

    Source: Naeini et al. 2015, "Obtaining Well Calibrated Probabilities Using Bayesian Binning"; NIST, "The NIST
    Speaker Recognition/RT evaluations: a tutorial introduction to NCE".
    """
    if not len(confidences):
        return {"words": 0, "right": None, "mean": None, "calibration_error": None, "cross_entropy_gain": None}
    _, of_confidence, of_right = reliability(confidences, is_right).T
    right = float(is_right.mean())
    gain = None
    if 0 < right < 1:
        entropy = -right * math.log(right) - (1 - right) * math.log1p(-right)
        gain = 1 - _cross_entropy(_log_odds(confidences), is_right.astype(float)) / (len(is_right) * entropy)
    return {
        "words": len(confidences),
        "right": right,
        "mean": float(confidences.mean()),
        "calibration_error": float(np.abs(of_confidence - of_right).sum() / len(confidences)),
        "cross_entropy_gain": gain,
    }


def _log_odds(confidences: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    clipped = np.clip(confidences, CLIP, 1 - CLIP)
    return np.log(clipped) - np.log1p(-clipped)


def _logistic(log_odds: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.exp(-np.logaddexp(0.0, -log_odds))


def _cross_entropy(log_odds: Float[np.ndarray, " N"], targets: Float[np.ndarray, " N"]) -> float:
    return float(np.sum(np.logaddexp(0.0, log_odds) - targets * log_odds))
