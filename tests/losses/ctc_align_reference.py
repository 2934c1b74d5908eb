"""Readable reference of `ctc_align` in plain NumPy. Both must return the same alignments."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Span(NamedTuple):
    """Frames of a label in a path."""

    start: int
    """First frame."""
    end: int
    """Frame after the last one."""
    log_prob: float
    """Maximum log-probability of the label over these frames."""


def align(
    log_probs: Float[np.ndarray, "T V"], labels: Sequence[int], *, blank_id: int
) -> tuple[float, list[Span]] | None:
    """Returns the log-probability of the most probable path, and the span of each label; None if there is no path.

    The states of the path are blank, label, blank, label, …, blank. From frame to frame it stays, or moves by one
    state, or by two from a label to a different one.

    Args:
        log_probs: Log-probabilities of all labels.
        labels: Label ids.
        blank_id: Label id of the blank.
    """
    symbols = [blank_id]
    for label in labels:
        symbols += [label, blank_id]
    score = np.full((len(log_probs) + 1, len(symbols)), -np.inf)  # scores before frame t
    origin = np.zeros((len(log_probs), len(symbols)), int)
    score[0, 0] = 0.0
    if labels:
        score[0, 1] = 0.0  # a path may begin with the first label
    for t, of_frame in enumerate(log_probs):
        for state, symbol in enumerate(symbols):
            best, by = (score[0, state], 0) if t == 0 else _best_move(score[t], symbols, state)
            origin[t, state], score[t + 1, state] = by, best + of_frame[symbol]
    last = len(symbols) - 1
    if len(labels) and score[-1, last - 1] > score[-1, last]:
        last -= 1
    if (not len(log_probs) and labels) or score[-1, last] == -np.inf:
        return None
    path = [last]
    for t in range(len(log_probs) - 1, 0, -1):
        path.append(path[-1] - int(origin[t, path[-1]]))
    return float(score[-1, last]), _spans(path[::-1], log_probs, labels)


def _best_move(before: Float[np.ndarray, " N"], symbols: Sequence[int], state: int) -> tuple[float, int]:
    """Returns the best score and its number of moved states; equal scores are resolved by the shorter move."""
    best, by = before[state], 0
    if state >= 1 and before[state - 1] > best:
        best, by = before[state - 1], 1
    is_label = state % 2 == 1
    if is_label and state >= 3 and symbols[state] != symbols[state - 2] and before[state - 2] > best:
        best, by = before[state - 2], 2
    return float(best), by


def _spans(path: Sequence[int], log_probs: Float[np.ndarray, "T V"], labels: Sequence[int]) -> list[Span]:
    spans = []
    for number, label in enumerate(labels):
        frames = [t for t, state in enumerate(path) if state == 2 * number + 1]
        spans.append(Span(frames[0], frames[-1] + 1, max(float(log_probs[t, label]) for t in frames)))
    return spans
