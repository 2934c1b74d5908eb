"""Values that change while training: piecewise linear functions of the number of updates."""

from collections.abc import Callable
from itertools import pairwise

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

Step = Num[Array, ""] | None
"""Updates applied so far when training, in the unit that a module's schedules count in; None when evaluating."""

Schedule = Callable[[Num[Array, ""]], Float[Array, ""]]
Value = float | Float[Array, ""] | Schedule
"""A constant, or what changes with the step."""


def piecewise_linear(*points: tuple[float, float]) -> Schedule:
    """The function through `points` (x, y), x ascending, constant before the first and after the last.

    Source: `ScheduledFloat` in icefall's egs/librispeech/ASR/zipformer/scaling.py.

    Raises:
        ValueError: no point, or x not ascending.
    """
    if not points or any(left[0] >= right[0] for left, right in pairwise(points)):
        raise ValueError(f"points of a schedule must be given, x ascending, got {points}")

    def value(step: Num[Array, ""]) -> Float[Array, ""]:
        total = jnp.float32(points[0][1])
        for (x0, y0), (x1, y1) in pairwise(points):
            total += (y1 - y0) * jnp.clip((jnp.float32(step) - x0) / (x1 - x0), 0.0, 1.0)
        return total

    return value


def over_training(start: float, end: float) -> Schedule:
    """From `start` to `end` over the 20000 batches in which the published schedules of icefall change most."""
    return piecewise_linear((0, start), (20000, end))


def at(value: Value, step: Num[Array, ""]) -> Float[Array, ""]:
    """What a constant or a schedule is worth at `step`."""
    return jnp.float32(value(step) if callable(value) else value)
