"""Inputs of the kernels for depthwise convolution over time, and the values and gradients of the reference."""

from functools import partial
from typing import Any

import jax
import numpy as np

from asr_jax.kernels import cases
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from tests.kernels.drawn import drawn

KERNEL_CASES = [
    (2, 9, 3, 5, (4, 0), 1, 1),
    (1, 3, 2, 7, (3, 3), 1, 1),
    (2, 70, 130, 3, (-2, 3), 1, 2),
    (2, 15, 3, 3, (2, 1), 2, 3),
]
"""Rows, frames, channels, taps, padding, stride and dilation: causal, more taps than frames, several blocks of frames
and channels with cropping and dilation, stride."""
DRAWN = [
    (rows, frames + dilation * (taps - 1), width, taps, (left, right), 1 + number % 2, dilation)
    for number, (rows, frames, width, taps, left, right, dilation) in enumerate(
        drawn("depthwise_conv", (1, 3), (1, 100), (1, 200), (1, 31), (0, 20), (0, 20), (1, 3), number=4)
    )
]
"""Half of them have a stride of 2."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def for_kernels(
    rows: int, frames: int, width: int, taps: int, padding: tuple[int, int], stride: int, dilation: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Input, filters and cotangent, and the values and gradients of the reference."""
    x, kernel = jax.device_put(cases.convolution(rows, frames, width, taps))
    call = partial(depthwise_conv, padding=padding, stride=stride, dilation=dilation, implementation="reference")
    y, transpose = jax.vjp(call, x, kernel)
    dy = jax.device_put(draw(*y.shape, seed=2))
    return (x, kernel, dy), (y, *transpose(dy))
