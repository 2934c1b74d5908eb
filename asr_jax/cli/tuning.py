"""Five steps that tune the size of an update, in the order of CAIMAN-ASR, with the figures of a plan."""

import math

from asr_jax.config import Experiment
from asr_jax.core.names import counted
from asr_jax.data.batching.buckets import Bucket, largest_first
from asr_jax.data.batching.dataset import PlannedData

UTTERANCES, HOURS = 1024, 5.0
"""Size of an update that CAIMAN-ASR recommends to exceed: utterances, or hours of audio."""


def tuning_lines(planned: PlannedData, experiment: Experiment) -> list[str]:
    """Returns a title and a line for each step."""
    plan, per_s, training = planned.plan, planned.index.scale.per_s, experiment.training
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
