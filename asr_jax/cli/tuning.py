"""Five steps that tune the size of an update, in the order of CAIMAN-ASR, with the figures of a plan."""

import math

from asr_jax.config import Experiment
from asr_jax.core.names import counted
from asr_jax.data.batching.buckets import Bucket, largest_first
from asr_jax.data.batching.dataset import PlannedData

UTTERANCES, HOURS = 1024, 5.0
"""Size of an update that CAIMAN-ASR recommends to exceed: utterances, or hours of audio."""


def tuning_lines(planned: PlannedData, experiment: Experiment) -> list[str]:
    """Returns a title and a line for each step.

    Args:
        planned: The planned training set.
    """
    plan, per_s, training = planned.plan, planned.index.scale.per_s, experiment.training
    batches, accumulate = plan.batches_per_epoch, training.accumulate
    seconds, utterances = plan.length_per_epoch / per_s / batches, plan.entries_per_epoch / batches
    largest = plan.buckets[largest_first(plan.buckets)[0]]
    reaching = {"utterances": math.ceil(UTTERANCES / utterances), "hours": math.ceil(3600 * HOURS / seconds)}
    # The rows of a file do not follow the settings of the size.
    raised = [] if experiment.data.buckets.file else [
        f"raise {_size(experiment)} until the largest batch fills the device: now {_shape(largest, per_s)}; --dry-run "
        "prints the memory of every shape"
    ]  # fmt: skip
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
    """Settings that determine the size of a batch in the sampling mode."""
    sampling, buckets = experiment.data.sampling, experiment.data.buckets
    if sampling.mode == "planned":
        return f"--data.buckets.batch-seconds {buckets.batch_seconds:g} (over all devices)"
    if sampling.device_seconds:
        return f"--data.sampling.device-seconds {sampling.device_seconds:g} (on each device)"
    if sampling.device_rows:
        return f"--data.sampling.device-rows {sampling.device_rows} (on each device)"
    if sampling.memory_gb:
        return f"--data.sampling.memory-gb {sampling.memory_gb:g} (of each device)"
    return f"--data.sampling.bin-rows {' '.join(map(str, sampling.bin_rows))} (on each device)"


def _shape(bucket: Bucket, per_s: float) -> str:
    seconds = bucket.length / per_s
    return (
        f"{counted(bucket.batch_size, 'row')} × {seconds:.2f} s = {bucket.batch_size * seconds:,.1f} s, "
        f"{bucket.num_tokens} labels"
    )
