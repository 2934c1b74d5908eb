"""Schedules of values during training, as piecewise linear functions of the number of updates."""

from collections.abc import Callable
from itertools import pairwise

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

Step = Num[Array, ""] | None
"""Number of applied updates, in the unit of the module's schedules, while training; None in evaluation, which has no
dropout, no skipped layers and no regularisers."""

Schedule = Callable[[Num[Array, ""]], Float[Array, ""]]
Value = float | Float[Array, ""] | Schedule
"""A constant, or a schedule over the step."""


def piecewise_linear(*points: tuple[float, float]) -> Schedule:
    """Interpolates linearly between `points` (x, y), and is constant before the first and after the last point.

    Source: `ScheduledFloat` in icefall's egs/librispeech/ASR/zipformer/scaling.py.

    Raises:
        ValueError: If there are no points, or x is not ascending.
    """
    if not points or any(left[0] >= right[0] for left, right in pairwise(points)):
        raise ValueError(f"a schedule has points {points}, expected at least one point (x, y), with ascending x")

    def value(step: Num[Array, ""]) -> Float[Array, ""]:
        total = jnp.float32(points[0][1])
        for (x0, y0), (x1, y1) in pairwise(points):
            total += (y1 - y0) * jnp.clip((jnp.float32(step) - x0) / (x1 - x0), 0.0, 1.0)
        return total

    return value


def over_training(start: float, end: float) -> Schedule:
    """Interpolates linearly from `start` to `end` over 20000 batches, in which most of icefall's schedules change."""
    return piecewise_linear((0, start), (20000, end))


def at(value: Value, step: Num[Array, ""]) -> Float[Array, ""]:
    """Returns the value of a constant or a schedule at `step`, as float32."""
    return jnp.float32(value(step) if callable(value) else value)
