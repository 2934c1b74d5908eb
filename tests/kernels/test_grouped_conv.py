"""Grouped convolution: both implementations against an explicit sum in NumPy, and their gradients."""

from functools import partial

import jax
import numpy as np
import pytest
from support import assert_within, max_abs, relative

from asr_jax.kernels.grouped_conv.api import grouped_conv

SHAPES = ("rows", "frames", "taps", "groups", "ins", "outs")
# Odd and even numbers of taps, more taps than frames, sizes of 1, one group, different numbers of input and output
# channels.
CASES = [
    (2, 13, 6, 2, 3, 3), (3, 20, 5, 3, 2, 2), (1, 3, 8, 2, 2, 2), (1, 1, 1, 1, 1, 1), (2, 9, 2, 1, 4, 4),
    (2, 11, 4, 2, 3, 5), (1, 40, 16, 4, 1, 2),
]  # fmt: skip


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_definition(x: np.ndarray, kernel: np.ndarray, groups: int) -> np.ndarray:
    taps, _, outs = kernel.shape
    out = np.zeros((*x.shape[:2], outs))
    for group, (part, filters) in enumerate(zip(np.split(x, groups, 2), np.split(kernel, groups, 2), strict=True)):
        for t in range(x.shape[1]):
            for k in range(taps):
                if 0 <= (source := t + k - taps // 2) < x.shape[1]:
                    out[:, t, group * filters.shape[2] :][:, : filters.shape[2]] += part[:, source] @ filters[k]
    return out


@pytest.mark.parametrize(SHAPES, CASES)
def test_values_and_gradients(rows: int, frames: int, taps: int, groups: int, ins: int, outs: int) -> None:
    x, kernel = draw(rows, frames, groups * ins), draw(taps, ins, groups * outs, seed=1)

    @jax.jit
    def both_forms(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> list[tuple[jax.Array, ...]]:
        forms = [partial(grouped_conv, implementation=form) for form in ("reference", "xla")]
        return [(y, *backward(dy)) for y, backward in (jax.vjp(form, x, kernel) for form in forms)]

    of_lax, ours = both_forms(x, kernel, draw(rows, frames, groups * outs, seed=2))
    expected = by_definition(x, kernel, groups)
    assert_within(max_abs(of_lax[0], expected), 1e-5)
    assert_within(max_abs(ours[0], expected), 1e-5)
    for actual, exact in zip(ours[1:], of_lax[1:], strict=True):
        assert_within(relative(actual, exact), 1e-5)


def test_channels_that_are_in_no_groups() -> None:
    with pytest.raises(ValueError, match="expected whole groups"):
        grouped_conv(draw(1, 4, 5), draw(3, 2, 4))
