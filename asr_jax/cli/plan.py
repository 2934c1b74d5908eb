"""Plans the training data of a run without training: `python -m asr_jax.plan --config FILE [--field.name VALUE …]`.

Prints the training data and the rejected utterances, the characters that are removed from texts, the buckets with their
padding, the length of an epoch and of the run, and the gradient accumulation for a requested global batch. Compiles
nothing and writes nothing except the cache of the manifests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from tyro.conf import arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import perturbed_lengths
from asr_jax.data.batching.dataset import PlannedData, Sets, plan_training, read_sets, read_training
from asr_jax.data.batching.overlap import find_overlap
from asr_jax.data.batching.removals import Removed, check_removed
from asr_jax.data.manifests.inputs import described
from asr_jax.data.manifests.reading import Utterances

LISTED = 20
"""Number of removed characters of a set that the table has."""
RECOMMENDED = {"s": 5 * 3600.0, "utterances": 1025}
"""Global batch that CAIMAN-ASR recommends for transducers: over 5 hours of audio, or over 1,024 utterances."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `asr_jax.plan`."""

    global_seconds: Annotated[float | None, arg(metavar="S")] = None
    """Size of a global batch in seconds of audio, without padding."""
    global_rows: Annotated[int | None, arg(metavar="N")] = None
    """Size of a global batch in utterances."""
    plot: Annotated[Path | None, arg(metavar="OUT.png")] = None
    """File for a histogram of the durations with the boundaries of the buckets."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(PlanOptions, arguments, prog="python -m asr_jax.plan", about=__doc__)
    wanted = wanted_batch(options.global_seconds, options.global_rows)
    if options.plot and options.plot.suffix != ".png":
        raise UserError(f"--plot {options.plot}: expected a name that ends in .png")

    from asr_jax.observe.tables import console_for, print_table, say

    planned, removed, warnings = plan(experiment)
    console = console_for()
    for line in described(experiment.data.train):
        say(console, f"train: {line}")
    print_table(set_rows(planned, experiment), title=f"{experiment.name}: training data", console=console)
    print_table(rejected_rows(planned), title="rejected", console=console)
    print_table(removed_rows(removed), title="characters removed from texts", console=console)
    print_table(bucket_rows(planned), title="buckets, shortest first", console=console)
    for line in lines(planned, experiment, wanted):
        say(console, line)
    for line in warnings:
        for part in f"warning: {line}".splitlines():
            say(console, part, style="bold yellow")
    if options.plot:
        from asr_jax.observe.durations import draw_durations

        draw_durations(planned, options.plot, title=experiment.name)
        say(console, f"drawn to {options.plot}")


def wanted_batch(seconds: float | None, rows: int | None) -> dict[str, float]:
    """Size of the global batch in seconds of audio (`s`), in `utterances`, or both. Default: RECOMMENDED.

    Raises:
        UserError: If a size is not a finite number above 0.
    """
    given = {"s": seconds, "utterances": rows}
    wanted = {unit: amount for unit, amount in given.items() if amount is not None} or RECOMMENDED
    if not all(0 < amount < math.inf for amount in wanted.values()):
        raise UserError(f"--global-seconds {seconds}, --global-rows {rows}: expected more than 0")
    return wanted


class Plan(NamedTuple):
    """The planned training set, and remarks on both sets."""

    train: PlannedData
    removed: dict[str, Removed]
    """Characters that are removed from texts, by the name of the set."""
    warnings: list[str]


def plan(experiment: Experiment) -> Plan:
    """Plans the training set exactly as `training.setup.set_up` does.

    Without a readable validation set, the training set alone is planned and a warning has the reason.
    """
    from asr_jax.inference.model import make_model
    from asr_jax.training.run import find_run, source_of
    from asr_jax.training.setup import check_sets, count_removed_of, make_tokenizer

    folder, data, warnings = find_run(experiment), experiment.data, list[str]()
    folder = source_of(experiment) or folder
    try:
        sets = read_sets(data, seed=experiment.seed)
    except UserError as error:
        train = read_training(data, seed=experiment.seed)
        sets = Sets(train, Utterances.of([]), is_split=False)
        warnings.append(f"the validation set is not planned: {str(error).splitlines()[0]}")
    tokenizer = make_tokenizer(data, folder, sets.train)
    model = make_model(experiment, tokenizer)
    planned = plan_training(
        sets.train, data, tokenizer=tokenizer, output_length=model.label_length,
        frames_needed=experiment.model.frames_needed,
        front_end=experiment.model.front_end, seed=experiment.seed,
        sub_batches=experiment.model.sub_batches,
    )  # fmt: skip
    removed = count_removed_of(sets, planned, tokenizer, data)
    for check in check_sets(sets, data):
        try:
            check.refuse()
            warnings += check.lines()
        except UserError as error:
            warnings.append(f"training would stop, because {error}")
    warnings += find_overlap(sets.train, sets.validation).lines()
    for name, of_set in removed.items():
        try:
            check_removed(of_set, limit=data.max_removed_share, what=name)
        except UserError as error:
            warnings.append(f"training would stop, because {error}")
    return Plan(planned, removed, warnings)


def set_rows(planned: PlannedData, experiment: Experiment) -> list[dict[str, Any]]:
    """One row for each entry of data.train and each source in it.

    A row contains utterances and hours of the set, and hours and share in an epoch, at all speeds.
    """
    index, plan = planned.index, planned.plan
    columns, rows = index.utterances.columns, index.utterances.rows
    pairs = np.stack([columns.input_of[rows], columns.sources.of_row[rows]])
    groups, group_of = np.unique(pairs, axis=1, return_inverse=True)
    hours = index.lengths / index.scale.per_s / 3600
    share, num = plan.mean_share(), len(plan.speeds)
    epoch_hours = share * perturbed_lengths(index.lengths, plan.speeds) / index.scale.per_s / 3600
    of_epoch = np.bincount(np.tile(group_of, num), epoch_hours)
    return [
        {
            "set": experiment.data.train[place],
            "source": columns.sources.names[source],
            "utterances": int(np.sum(group_of == group)),
            "hours": float(hours[group_of == group].sum()),
            "epoch hours": float(of_epoch[group]),
            "epoch_share": float(of_epoch[group] / of_epoch.sum()),
        }
        for group, (place, source) in enumerate(groups.T.tolist())
    ]


def rejected_rows(planned: PlannedData) -> list[dict[str, Any]]:
    """One row for each reason for rejection."""
    rejections = planned.rejections
    rows = [
        {"reason": name, "utterances": num, "hours": rejections.hours[name], "such as": rejections.examples[name]}
        for name, num in rejections.utterances.items()
    ]
    return rows or [{"reason": "none", "utterances": 0, "hours": 0.0}]


def removed_rows(removed: dict[str, Removed]) -> list[dict[str, Any]]:
    """One row for each set and each of the LISTED most frequent characters that are removed from its texts."""
    rows = [
        {
            "set": name, "character": part.description, "removed by": part.by, "times": part.number,
            "texts": part.texts, "such as": part.text[:60],
        }
        for name, of_set in removed.items() for part in of_set.parts[:LISTED]
    ]  # fmt: skip
    return rows or [{"character": "none", "times": 0}]


def bucket_rows(planned: PlannedData) -> list[dict[str, Any]]:
    """One row for each bucket: its shape, and its utterances (at all speeds), batches and padding in an epoch."""
    plan, per_s = planned.plan, planned.index.scale.per_s
    entries, batches, padded = plan.entries_by_bucket(), plan.batches_by_bucket(), plan.padded_by_bucket()
    return [
        {
            "seconds": bucket.length / per_s,
            "labels": bucket.num_tokens,
            "rows": bucket.batch_size,
            "batch s": bucket.batch_size * bucket.length / per_s,
            "utterances": entries[k],
            "batches": int(batches[k]),
            "padding_share": 1 - float(plan.length_by_bucket[k]) / float(padded[k]),
        }
        for k, bucket in enumerate(plan.buckets)
    ]


def lines(planned: PlannedData, experiment: Experiment, wanted: dict[str, float]) -> list[str]:
    """Lines on padding, an epoch, the run, and the accumulation for each requested global batch.

    Args:
        planned: The planned training set.
        experiment: The experiment.
        wanted: Size of the global batch, as from `wanted_batch`.
    """
    from asr_jax.training.setup import run_length
    from asr_jax.training.timetable import Groups

    plan, training = planned.plan, experiment.training
    batches, accumulate, speeds = plan.batches_per_epoch, training.accumulate, len(plan.speeds)
    seconds = plan.length_per_epoch / planned.index.scale.per_s
    mean = {"s": seconds / batches, "utterances": plan.entries_per_epoch / batches}
    groups = Groups(batches, accumulate, training.epoch_end)
    updates, num_updates = groups.updates_per_epoch, run_length(training.num_updates, training.num_epochs, groups)
    moved = f", each changed at random by up to {plan.jitter:g}" if plan.jitter else ""
    at_speeds = f" (each utterance at {speeds} speed{'s' * (speeds > 1)}{moved})" if speeds > 1 or moved else ""
    entries = f"{plan.entries_per_epoch:,} utterances{at_speeds}"
    found = [
        f"padding: {plan.padding_share:.1%} of all batches, in {len(plan.buckets)} shapes",
        f"an epoch: {entries}, {seconds / 3600:,.2f} h in {batches:,} batches, {updates:,.6g} updates",
        f"the run: {num_updates:,} updates, {num_updates / updates:,.4g} epochs",
        f"mean batch: {_amounts(mean, 1)}",
        f"current global batch, training.accumulate {accumulate}: {_amounts(mean, accumulate)}",
    ]
    for unit, amount in wanted.items():
        reaching = math.ceil(amount / mean[unit])
        more = "; an epoch has fewer batches, so use larger ones" if reaching > batches else ""
        what = f"{amount / 3600:,.2f} h of audio" if unit == "s" else f"{amount:,} utterances"
        found.append(f"a global batch of {what}: --training.accumulate {reaching}{more}")
    return found


def _amounts(mean: dict[str, float], times: int) -> str:
    seconds = mean["s"] * times
    return f"{seconds:,.1f} s of audio ({seconds / 3600:,.2f} h), {mean['utterances'] * times:,.1f} utterances"
