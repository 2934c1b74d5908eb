"""Sizes of the recursions of CTC and of transducer lattices, and a comparison of their results."""

from typing import Any

import jax
import numpy as np

from asr_jax.kernels import cases
from asr_jax.kernels.log_space import NEVER
from tests.kernels.drawn import drawn
from tests.support import assert_close

CTC_SIZES = [(5, 3, 2, 2), (41, 9, 7, 2), (1, 1, 1, 1), (6, 2, 0, 2), (30, 2, 140, 1)]
"""Frames, rows, labels, directions: several blocks of frames, several tiles of rows and of columns, no labels, one
frame."""
CTC_DRAWN = drawn("ctc_sweep", (1, 50), (1, 10), (0, 150), (1, 2))
LATTICE_SIZES = [(5, 3, 2, 2), (41, 9, 7, 2), (1, 1, 0, 1), (30, 2, 140, 1)]
LATTICE_DRAWN = drawn("lattice_sweep", (1, 50), (1, 10), (0, 150), (1, 2))
RNNT, TDT = ((1, 1), (0, 1)), ((1, 3, 1, 2, 3), (0, 0, 1, 1, 1))
"""Spans and moves of the arcs."""


def for_ctc(*sizes: int) -> tuple[Any, ...]:
    return jax.device_put(cases.ctc(*sizes))


def with_bonus(emissions: Any, labels: Any, lengths: Any) -> tuple[Any, ...]:
    """Adds a bonus of blanks, which is 0 after the last label, to the arrays of `for_ctc`."""
    bonus = np.random.default_rng(len(emissions)).normal(size=(*labels.shape[:2], labels.shape[2] + 1))
    bonus[0, np.arange(len(lengths)), lengths] = bonus[1:, :, -1] = 0
    return emissions, labels, lengths, jax.device_put(bonus.astype(np.float32))


def for_lattices(*sizes: int, num_arcs: int = 2) -> tuple[Any, ...]:
    return jax.device_put(cases.lattices(*sizes, num_arcs))


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        possible = other > NEVER / 2
        np.testing.assert_array_equal(one > NEVER / 2, possible)
        assert_close(one[possible], other[possible], rtol=1e-5, atol=1e-5)
