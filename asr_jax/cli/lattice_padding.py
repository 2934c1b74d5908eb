"""Padding of the lattice of frames and labels that a transducer computes its loss for, as `plan` prints it."""

from collections.abc import Mapping

import numpy as np

from asr_jax.data.batching.buckets import perturbed_lengths
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.transducer import Transducer


def lattice_padding(planned: PlannedData) -> dict[str, float]:
    """Returns the shares of padding of frames, labels and nodes in the batches of an epoch, or of a mean one.

    There are frames times labels plus one nodes, for which the joint network is computed.
    """
    plan, index = planned.plan, planned.index
    num = plan.num_utterances
    frames = perturbed_lengths(index.lengths[:num], plan.speeds).astype(np.float64)
    labels = np.tile(index.num_labels()[:num], len(plan.speeds)).astype(np.float64)
    times, rows = plan.mean_share(), plan.batches_by_bucket() * [bucket.batch_size for bucket in plan.buckets]
    lengths, widths = np.array([(bucket.length, bucket.num_tokens) for bucket in plan.buckets], np.float64).T
    of_entries = {"frames": frames, "labels": labels, "nodes": frames * (labels + 1)}
    of_buckets = {"frames": lengths, "labels": widths, "nodes": lengths * (widths + 1)}
    return {
        name: 1 - float(np.sum(times * of_entries[name])) / max(float(np.sum(rows * of_buckets[name])), 1.0)
        for name in of_entries
    }


def lattice_lines(planned: PlannedData, heads: Mapping[str, HeadSettings]) -> list[str]:
    """Returns a line on the padding of the lattice; none for models without a transducer."""
    if not any(isinstance(head, Transducer) for head in heads.values()):
        return []
    found = lattice_padding(planned)
    return [
        f"padding of the transducer's lattice: {found['frames']:.1%} of frames (T), {found['labels']:.1%} of labels "
        f"(U), {found['nodes']:.1%} of nodes (T x (U + 1)), for which the joint network is computed"
    ]
