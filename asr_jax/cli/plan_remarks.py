"""Remarks of a plan: five steps that tune the size of an update, as in CAIMAN-ASR, and the padding of lattices."""

import math
from collections.abc import Mapping

import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.names import counted
from asr_jax.data.batching.buckets import Bucket, largest_first, perturbed_lengths
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.transducer import Transducer

UTTERANCES, HOURS = 1024, 5.0
"""Size of an update that CAIMAN-ASR recommends to exceed: utterances, or hours of audio."""
LEAST_H = 50.0
"""Hours of audio of an epoch from which updates of that size are useful."""


def tuning_lines(planned: PlannedData, experiment: Experiment) -> list[str]:
    """Returns a title and a line for each step; none for epochs that are too short for updates of that size."""
    plan, per_s, training = planned.plan, planned.index.scale.per_s, experiment.training
    if plan.length_per_epoch / per_s < 3600 * LEAST_H:
        return []
    batches, accumulate = plan.batches_per_epoch, training.accumulate
    seconds, utterances = plan.length_per_epoch / per_s / batches, plan.entries_per_epoch / batches
    largest = plan.buckets[largest_first(plan.buckets)[0]]
    reaching = {"utterances": math.ceil(UTTERANCES / utterances), "hours": math.ceil(3600 * HOURS / seconds)}
    # The rows of a file do not follow the settings of the size.
    raised = (
        []
        if experiment.data.batching.file
        else [
            f"raise {_size(experiment)} until the largest batch fills the device: now {_shape(largest, per_s)}; "
            "--dry-run prints the memory of every shape"
        ]
    )
    steps = [
        f"start with --training.accumulate 1 (now {accumulate}) and {_split(experiment)}",
        *raised,
        "raise the split as long as the throughput rises: python -m asr_jax.benchmark train",
        f"the mean batch, over all devices: {seconds:,.1f} s of audio, {utterances:,.1f} utterances",
        f"set --training.accumulate {reaching['utterances']} for {UTTERANCES:,} utterances per update, or "
        f"{reaching['hours']} for {HOURS:g} h; now {accumulate * utterances:,.1f} utterances and "
        f"{accumulate * seconds / 3600:,.2f} h",
    ]
    title = "tuning of an update, in this order, on the whole training set (a change of split changes no result):"
    return [title, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]


def _split(experiment: Experiment) -> str:
    """Setting that computes the largest arrays in parts: a transducer head's split, or the split of whole batches."""
    heads = {name: head.split for name, head in experiment.model.heads.items() if hasattr(head, "split")}
    if not heads:
        return f"--training.split 2 (now {experiment.training.split})"
    name, split = next(iter(heads.items()))
    return f"--model.heads.{name}.split 2 (batch_split_factor; now {split})"


def _size(experiment: Experiment) -> str:
    """Setting that determines the size of a batch."""
    batching = experiment.data.batching
    scope = "over all devices" if batching.devices is None else "on each device"
    if batching.rows and not batching.by_duration:
        return f"--data.batching.rows {' '.join(map(str, batching.rows))} ({scope})"
    return f"--data.batching.budget {batching.budget:g} ({batching.unit}, {scope})"


def _shape(bucket: Bucket, per_s: float) -> str:
    seconds = bucket.length / per_s
    return (
        f"{counted(bucket.batch_size, 'row')} × {seconds:.2f} s = {bucket.batch_size * seconds:,.1f} s, "
        f"{bucket.num_tokens} labels"
    )


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
