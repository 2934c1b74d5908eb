"""Inputs for the recursions of CTC and of transducer lattices, and a comparison of their results."""

from typing import Any

import jax
import numpy as np

from asr_jax.kernels.lattice_sweep.reference import Start
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


def for_ctc(frames: int, rows: int, num_labels: int, directions: int) -> tuple[Any, ...]:
    random = np.random.default_rng(frames)
    labels = random.integers(1, 4, (rows, num_labels))
    lengths = random.integers(0, num_labels + 1, rows)
    emissions = random.normal(-2, 2, (frames, rows, num_labels + 2))
    emissions[..., -1] = emissions[..., 0]
    emissions[:, :, 1:-1][:, np.arange(num_labels)[None] >= lengths[:, None]] = NEVER
    padding = np.where(np.isin(np.arange(num_labels + 2), (0, num_labels + 1)), 0, NEVER)
    emissions[frames // 2 + 1 :, 0] = padding
    both = np.stack([labels, labels[:, ::-1]])[:directions]
    return jax.device_put((np.float32(emissions), np.int32(both), np.int32(lengths)))


def for_lattices(frames: int, rows: int, num_labels: int, directions: int, num_arcs: int) -> tuple[Any, ...]:
    random, shape = np.random.default_rng(frames), (frames + num_labels + 1, directions, rows, num_labels + 1)
    weights = random.normal(-2, 2, (num_arcs, *shape))
    weights[random.uniform(size=weights.shape) < 0.1] = NEVER
    column = random.integers(0, num_labels + 1, (directions, rows))
    start = Start(
        np.int32(random.integers(0, min(3, frames), (directions, rows))),
        column[..., None] == np.arange(num_labels + 1),
    )
    return jax.device_put((tuple(np.float32(each) for each in weights), start))


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        possible = other > NEVER / 2
        np.testing.assert_array_equal(one > NEVER / 2, possible)
        assert_close(one[possible], other[possible], rtol=1e-5, atol=1e-5)
