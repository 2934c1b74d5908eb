"""Padding of the lattice of frames and labels that a transducer computes its loss for, as `plan` prints it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from asr_jax.data.batching.buckets import perturbed_lengths
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.transducer import Transducer


class LatticePadding(NamedTuple):
    """Shares of padding in all batches of an epoch, 0 to 1. With mixing, the means over all epochs."""

    frames: float
    labels: float
    nodes: float
    """Padding of frames times labels plus one, for which the joint network is computed."""

    @classmethod
    def of(cls, planned: PlannedData) -> "LatticePadding":
        """Returns the padding of a planned training set."""
        plan, index = planned.plan, planned.index
        num = plan.num_utterances
        lengths = perturbed_lengths(index.lengths[:num], plan.speeds).astype(np.float64)
        labels = np.tile(index.num_labels()[:num], len(plan.speeds)).astype(np.float64)
        times, rows = plan.mean_share(), plan.batches_by_bucket() * [bucket.batch_size for bucket in plan.buckets]
        sizes = np.array([(bucket.length, bucket.num_tokens) for bucket in plan.buckets], np.float64)

        def padding(of_entries: np.ndarray, of_buckets: np.ndarray) -> float:
            return 1 - float(np.sum(times * of_entries)) / max(float(np.sum(rows * of_buckets)), 1.0)

        return cls(
            frames=padding(lengths, sizes[:, 0]),
            labels=padding(labels, sizes[:, 1]),
            nodes=padding(lengths * (labels + 1), sizes[:, 0] * (sizes[:, 1] + 1)),
        )

    def __str__(self) -> str:
        return (
            f"padding of the transducer's lattice: {self.frames:.1%} of frames (T), {self.labels:.1%} of labels (U), "
            f"{self.nodes:.1%} of nodes (T x (U + 1)), for which the joint network is computed"
        )


def lattice_lines(planned: PlannedData, heads: Mapping[str, HeadSettings]) -> list[str]:
    """Returns a line on the padding of the lattice; none for models without a transducer.

    Args:
        planned: The planned training set.
    """
    has_lattice = any(isinstance(head, Transducer) for head in heads.values())
    return [str(LatticePadding.of(planned))] if has_lattice else []
