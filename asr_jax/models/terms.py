"""Weights and totals of loss terms."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxtyping import Array, Float, PRNGKeyArray

from asr_jax.core.batch import Batch
from asr_jax.models.base import Recogniser

Weights = dict[str, Float[Array, ""]]
"""By term."""


def batch_weights(
    model: Recogniser, batch: Batch, streams: Mapping[str, PRNGKeyArray] = MappingProxyType({})
) -> Weights:
    """The weight of each loss term of a batch. `streams`: those that its gradient is computed with, which a model that
    hides frames needs."""
    weights: Weights = model.apply({}, batch, method="weights", rngs=dict(streams))  # type: ignore[assignment]
    return weights


def total_of(means: Mapping[str, float], scales: Mapping[str, float]) -> float:
    """The loss, Σ scale · mean over terms, of the mean of each term, for people: NaN where a term has none."""
    return sum(scales[name.split("/")[0]] * mean for name, mean in means.items())
