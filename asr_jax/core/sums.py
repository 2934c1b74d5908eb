"""Every number that a person sees is a ratio of two sums, which merge by adding over rows, devices and batches."""

from collections.abc import Iterable

import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.core.pytrees import Node


class Sum(Node):
    """`total / weight` is the mean; a weight of zero means that there was nothing to count."""

    total: Float[Array, ""] | float
    weight: Float[Array, ""] | float

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)

    def mean(self) -> float:
        """The mean as a Python number; NaN where the weight is zero."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else float("nan")


Sums = dict[str, Sum]


def empty_sums(names: Iterable[str]) -> Sums:
    """Sums of nothing, on the device."""
    return {name: Sum(jnp.zeros(()), jnp.zeros(())) for name in names}


def merge(all_sums: Iterable[Sums]) -> Sums:
    """Adds sums by name; a name may be absent from some."""
    merged: Sums = {}
    for sums in all_sums:
        for name, value in sums.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged
