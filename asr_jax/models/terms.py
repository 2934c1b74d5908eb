"""Denominators and totals of loss terms."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxtyping import Array, Float, PRNGKeyArray

from asr_jax.core.batch import Batch
from asr_jax.models.base import Recogniser

Denominators = dict[str, Float[Array, ""]]
"""Denominator of the mean of each loss term, such as the number of its labels, by the name of the term."""


def batch_denominators(
    model: Recogniser, batch: Batch, streams: Mapping[str, PRNGKeyArray] = MappingProxyType({})
) -> Denominators:
    """Computes the denominator of each loss term of a batch.

    Args:
        streams: Random streams of the gradient's computation, which models that mask frames need.
    """
    denominators: Denominators = model.apply({}, batch, method="denominators", rngs=dict(streams))  # type: ignore[assignment]
    return denominators


def total_of(means: Mapping[str, float], scales: Mapping[str, float]) -> float:
    """Computes the total loss for reports, Σ scale · mean over terms.

    Args:
        means: Mean of each term, by `head/term`. The loss is NaN if one of them is.
    """
    return sum(scales[name.split("/")[0]] * mean for name, mean in means.items())
