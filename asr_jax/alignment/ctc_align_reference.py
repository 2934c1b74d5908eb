"""Forced alignment over CTC in plain NumPy: what `ctc_align` must equal. Meant to be read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Span(NamedTuple):
    """A label's part of a path."""

    start: int
    """First frame."""
    end: int
    """The frame behind the last one."""
    log_prob: float
    """In the likeliest of these frames."""


def align(
    log_probs: Float[np.ndarray, "T V"], labels: Sequence[int], *, blank_id: int
) -> tuple[float, list[Span]] | None:
    """Log-probability of the likeliest path of the labels, and the part of each; None where there is no path.

    The path goes through the states blank, label, blank, label, …, blank: from frame to frame it stays, moves on by
    one, or by two from a label to another one that differs from it.
    """
    symbols = [blank_id]
    for label in labels:
        symbols += [label, blank_id]
    score = np.full((len(log_probs) + 1, len(symbols)), -np.inf)  # before frame t
    origin = np.zeros((len(log_probs), len(symbols)), int)
    score[0, 0] = 0.0
    if labels:
        score[0, 1] = 0.0  # which is as though it were entered from the blank
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
    """The best score, and by how many states it moved; the shorter move where two are as good."""
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
