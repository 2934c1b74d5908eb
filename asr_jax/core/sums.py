"""Metrics as ratios of two sums, which are added over rows, devices and batches."""

from collections.abc import Iterable

from jaxtyping import Array, Float

from asr_jax.core.pytrees import Node


class Sum(Node):
    """The mean is `total / weight`; a weight of 0 means that nothing was counted."""

    total: Float[Array, ""] | float
    weight: Float[Array, ""] | float

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)

    def mean(self) -> float:
        """Returns the mean as a Python number; NaN if the weight is 0."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else float("nan")


Sums = dict[str, Sum]


def merge(all_sums: Iterable[Sums]) -> Sums:
    """Adds the sums of equal names. A name may be missing in some of them."""
    merged: Sums = {}
    for sums in all_sums:
        for name, value in sums.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged
