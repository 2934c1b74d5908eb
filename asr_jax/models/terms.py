"""Denominators and totals of loss terms."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxtyping import Array, Float, PRNGKeyArray

from asr_jax.core.batch import Batch
from asr_jax.models.base import Recogniser

Denominators = dict[str, Float[Array, ""]]
"""The denominator of the mean of each loss term, such as the number of its labels, by the name of the term."""


def batch_denominators(
    model: Recogniser, batch: Batch, streams: Mapping[str, PRNGKeyArray] = MappingProxyType({})
) -> Denominators:
    """The denominator of each loss term of a batch.

    `streams` are the random streams of the gradient; models that mask frames need them.
    """
    denominators: Denominators = model.apply({}, batch, method="denominators", rngs=dict(streams))  # type: ignore[assignment]
    return denominators


def total_of(means: Mapping[str, float], scales: Mapping[str, float]) -> float:
    """The loss, Σ scale · mean over terms, of the mean of each term, for people: NaN where a term has none."""
    return sum(scales[name.split("/")[0]] * mean for name, mean in means.items())
