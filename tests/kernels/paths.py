"""Sizes of the most probable path of CTC."""

from typing import Any

import jax

from asr_jax.kernels import cases
from tests.kernels.drawn import drawn

PATH_SIZES = [(3, 7, 4, 2), (9, 150, 140, 5), (2, 1, 1, 3), (2, 6, 0, 4)]
"""Rows, frames, labels and symbols: several tiles of rows, of frames and of columns, one frame, no labels."""
DRAWN = drawn("ctc_viterbi", (2, 10), (1, 200), (0, 150), (2, 8))


def for_paths(*sizes: int) -> tuple[Any, ...]:
    return jax.device_put(cases.paths(*sizes))
