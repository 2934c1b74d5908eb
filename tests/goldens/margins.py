"""Margins of discrete choices: the difference between the largest and the second largest value.

Values that depend on an argmax are comparable only if rounding cannot change it. Two float32 implementations of
the same sums differ by about 1e-6 of their largest value, by instruction set and by order of summation; a choice with a
margin below `TIE` is a tie, and values that depend on it are not compared.
"""

from typing import Any

import numpy as np
import pytest

TIE = 1e-5
"""Smallest margin that is not a tie, relative to the largest magnitude of the values."""


def choice_margins(values: Any) -> np.ndarray:
    """Returns differences between the two largest values of the last axis, relative to the largest finite magnitude."""
    values = np.asarray(values, np.float64)
    if values.shape[-1] == 1:  # there is no choice
        return np.full(values.shape[:-1], np.inf)
    second, best = np.moveaxis(np.partition(values, -2, axis=-1)[..., -2:], -1, 0)
    return (best - second) / np.max(np.abs(values[np.isfinite(values)]))


def argmax_margin(values: Any) -> float:
    """Returns the smallest of `choice_margins`."""
    return float(np.min(choice_margins(values)))


def path_margin(log_probs: np.ndarray, labels: np.ndarray, *, blank_id: int) -> float:
    """Returns the margin of the best CTC path of `labels` [U] through `log_probs` [T V].

    It is the smallest difference, over frames, to the best path with another state in the frame, relative to the
    magnitude of the path's log-probability. Without labels there is only one path, and the margin is infinite.
    """
    if len(labels) == 0:
        return np.inf
    symbols = np.full(2 * len(labels) + 1, blank_id)
    symbols[1::2] = labels
    skips = np.zeros(len(symbols), bool)  # states that are reachable from two states before
    skips[2:] = (symbols[2:] != blank_id) & (symbols[2:] != symbols[:-2])
    scores = log_probs[:, symbols].astype(np.float64)
    before = _best_to(scores, skips)
    after = _best_to(scores[::-1, ::-1], np.roll(skips, -2)[::-1])[::-1, ::-1]
    through = np.sort(before + after - scores, axis=1)
    return float(np.min(through[:, -1] - through[:, -2]) / np.abs(through[0, -1]))


def _best_to(scores: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Returns the score of the best path to each frame and state [T N]. Paths start in the first or second state."""
    best = np.full_like(scores, -np.inf)
    best[0, :2] = scores[0, :2]
    for t in range(1, len(scores)):
        stayed = np.pad(best[t - 1], (2, 0), constant_values=-np.inf)
        best[t] = scores[t] + np.maximum(np.maximum(stayed[2:], stayed[1:-1]), np.where(skips, stayed[:-2], -np.inf))
    return best


def skip_ties(*, has_none: bool = False, **margins: float) -> None:
    """Skips a test with a tie in one of its choices; fails it if the case is expected to have no ties (`has_none`)."""
    for choice, margin in margins.items():
        if margin < TIE:
            reason = f"rounding decides this case's {choice}: margin {margin:.1e}, expected at least {TIE:.0e}"
            pytest.fail(reason + ", as the case's file says") if has_none else pytest.skip(reason)
