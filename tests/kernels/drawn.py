"""Shapes drawn at random for the tests of kernels.

The environment variable ASR_JAX_TEST_SEED gives the seed; without it, the seed is 0. Names of tests contain the shapes.
"""

import os
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

SEED = int(os.environ.get("ASR_JAX_TEST_SEED", "0"))


def drawn(kernel: str, *ranges: tuple[int, int], number: int = 3) -> list[tuple[int, ...]]:
    """Draws shapes. The logarithms of the sizes plus 1 are uniform, so that small and large sizes are equally frequent.

    Args:
        kernel: Name of the kernel, which is part of the seed.
        *ranges: Smallest and largest value of each size. The smallest is at least 0.
        number: Number of shapes.
    """
    random = np.random.default_rng([SEED, zlib.crc32(kernel.encode())])
    low, high = np.log1p(np.asarray(ranges)).T
    sizes = np.rint(np.expm1(random.uniform(low, high, (number, len(ranges)))))
    return [tuple(map(int, each)) for each in sizes]


def with_drawn(fixed: Iterable[Any], shapes: Iterable[Any]) -> list[Any]:
    """Returns parameters of tests: fixed ones, and drawn ones for slow tests."""
    return [*fixed, *(pytest.param(each, marks=pytest.mark.slow) for each in shapes)]
