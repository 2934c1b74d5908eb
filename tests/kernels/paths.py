"""Inputs of the kernels for the most probable path of CTC."""

from typing import Any

import jax
import numpy as np

from tests.kernels.drawn import drawn

PATH_SIZES = [(3, 7, 4, 2), (9, 150, 140, 5), (2, 1, 1, 3), (2, 6, 0, 4)]
"""Rows, frames, labels and symbols: several tiles of rows, of frames and of columns, one frame, no labels."""
DRAWN = drawn("ctc_viterbi", (2, 10), (1, 200), (0, 150), (2, 8))


def for_paths(rows: int, frames: int, num_labels: int, symbols: int) -> tuple[Any, ...]:
    """Whole numbers, so that many paths are equally good, and impossible symbols. Row 0 is full, the last is empty."""
    random = np.random.default_rng(frames)
    log_probs = -random.integers(0, 3, (rows, frames, symbols)).astype(np.float32)
    log_probs[random.uniform(size=log_probs.shape) < 0.1] = -np.inf
    lengths, labels = random.integers(0, frames + 1, rows), random.integers(1, symbols, (rows, num_labels))
    label_lengths = random.integers(0, num_labels + 1, rows)
    lengths[0], lengths[-1], label_lengths[0] = frames, 0, min(num_labels, frames // 2)
    labels = np.where(np.arange(num_labels)[None] < label_lengths[:, None], labels, 0)
    return jax.device_put((log_probs, *(each.astype(np.int32) for each in (lengths, labels, label_lengths))))
