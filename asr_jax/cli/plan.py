"""Plans the training data of a run without training: `python -m asr_jax.plan --config FILE [--field.name VALUE …]`.

Prints the training and validation data, the labels, the rejected utterances, the characters that are removed from texts
or replaced in them, the buckets with their padding, the length of an epoch and of the run, and, for a requested size of
an update, the gradient accumulation; then five steps that tune the size of an update, with their figures. Writes
nothing except caches and requested files, and compiles only for `--target` and a budget of memory
(`data.batching.unit`).

`--target h100` compiles the training programs for devices that need not be present, and prints their memory, products,
bytes and collectives. The extras cuda12 and tpu have the compilers.
"""

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from tyro.conf import arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.cli.plan_remarks import lattice_lines, tuning_lines
from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_no_input, check_writable, write_whole
from asr_jax.core.meshes import described_devices
from asr_jax.core.names import counted
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelow1, command_options
from asr_jax.core.targets import Target, target_of
from asr_jax.core.text_files import json_line
from asr_jax.data.batching.bucket_files import write_buckets
from asr_jax.data.batching.buckets import perturbed_lengths
from asr_jax.data.batching.crops import about_crops
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import about_long
from asr_jax.data.batching.overlap import find_overlap
from asr_jax.data.batching.removals import Removed, about_removed, check_removed
from asr_jax.data.batching.round_trip import RoundTrip
from asr_jax.data.batching.sets import Sets, read_sets, read_training
from asr_jax.data.manifests.inputs import described
from asr_jax.data.manifests.reading import Utterances
from asr_jax.optim.schedules import RunLength
from asr_jax.text.tokenizers import Tokenizer

LISTED = 20
"""Number of removed characters of a set that the table has."""
LABELS_SHOWN = 200
"""Number of labels that are printed."""

MANIFESTS = (
    "\nA plan needs the manifests with durations and texts, or the shards; audio files of manifests may be absent."
)
"""Addition to the errors of training data that cannot be read."""


@command_options
class PlanOptions:
    """Options of `asr_jax.plan`."""

    global_seconds: Annotated[PositiveFloat | None, arg(metavar="S")] = None
    """Size of a global batch in seconds of audio, without padding. The accumulation that reaches it is printed."""
    global_rows: Annotated[PositiveInt | None, arg(metavar="N")] = None
    """Size of a global batch in utterances. The accumulation that reaches it is printed."""
    plot: Annotated[Path | None, arg(metavar="OUT.png")] = None
    """File for a histogram of the durations with the boundaries of the buckets."""
    rejected: Annotated[Path | None, arg(metavar="OUT.jsonl")] = None
    """File for the rejected utterances, one line of JSON each, as in rejected.jsonl of a run."""
    target: Annotated[str, arg(metavar="DEVICES")] = ""
    """Devices to compile the training programs for: a100, a100-40gb, a6000, b200, h100, h200, l40s, v5e, v5p or
    v6e, with the number of GPUs (h100:8) or the topology of a TPU slice (v5e:4x4), or cpu for this machine."""
    fit: Annotated[Path | None, arg(metavar="OUT.json")] = None
    """File for the batches with the most rows that fit the memory of the target, up to --data.batching.max-rows rows
    over all devices. Training reads it with --data.batching.file OUT.json."""
    margin: ShareBelow1 = 0.1
    """Share of the target's memory that --fit leaves free."""
    operations: Annotated[NonNegativeInt, arg(metavar="N")] = 0
    """Number of the largest operations of each program to print, by bytes and by floating-point operations."""
    quick: bool = False
    """Compile for the target in a half to a third of the time. The compiled programs then differ from the training
    programs: on GPUs their memory is about equal, on TPUs it is larger."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(PlanOptions, arguments, prog="python -m asr_jax.plan", about=__doc__)
    wanted = {"s": options.global_seconds, "utterances": options.global_rows}
    if options.plot and options.plot.suffix != ".png":
        raise UserError(f"--plot {options.plot}: expected a name that ends in .png")
    for name in ("rejected", "fit", "plot"):
        check_no_input(f"--{name}", getattr(options, name), (*experiment.data.train, *experiment.data.validation))
    check_writable(options.rejected)
    check_writable(options.fit)
    if options.fit and not options.target:
        raise UserError("--fit without --target: expected the devices to fit, such as --target h100")
    if options.fit and (experiment.data.batching.devices is not None or experiment.data.batching.any_length):
        raise UserError(
            "--fit finds rows of buckets over all devices: expected --data.batching.devices None, and another "
            "--data.batching.edges than none"
        )
    if not options.target and (options.quick or options.operations):
        raise UserError("--quick and --operations without --target: expected the devices, such as --target h100")
    target = target_of(options.target).arranged(experiment.mesh) if options.target else None

    from asr_jax.observe.tables import console_for, print_table, say

    made = plan(experiment, mesh=target.mesh if target else None)
    planned, validation, _, tokenizer, removed, round_trips, warnings = made
    console = console_for()
    if planned.shards:
        say(console, "train: the figures are of a sample of the shards (data.sampled_items)")
    else:
        for line in described(experiment.data.train):
            say(console, f"train: {line}")
    with suppress(UserError):  # a warning has the reason
        for line in described(experiment.data.validation, "validation"):
            say(console, f"validation: {line}")
    print_table(set_rows(planned, experiment), title=f"{experiment.name}: training data", console=console)
    if validation:
        print_table(validation_rows(validation, experiment), title="validation data", console=console)
        if message := about_long(validation):
            say(console, f"validation: {message}")
    say(console, about_labels(tokenizer))
    print_table(rejected_rows(planned, validation), title="rejected", console=console)
    print_table(removed_rows(removed), title="characters removed from texts or replaced in them", console=console)
    if any(each.parts for each in round_trips.values()):
        print_table(removed_rows(round_trips), title="parts of texts that labels write otherwise", console=console)
    print_table(bucket_rows(planned), title="buckets, shortest first", console=console)
    for line in [*lines(planned, experiment, wanted), *tuning_lines(planned, experiment)]:
        say(console, line)
    for line in warnings:
        for part in f"warning: {line}".split("\n"):
            say(console, part, style="bold yellow")
    if options.plot:
        from asr_jax.observe.durations import draw_durations

        draw_durations(planned, options.plot, title=experiment.name)
        say(console, f"drawn to {options.plot}")
    if options.rejected:
        entries = [*planned.rejections.entries, *(validation.rejections.entries if validation else ())]
        write_whole(options.rejected, "".join(json_line(each.to_json()) for each in entries))
        say(console, f"{options.rejected}: the rejected utterances")
    if target:
        _compile(made, experiment, target, options, console)


class Plan(NamedTuple):
    """The planned sets, and remarks on them."""

    train: PlannedData
    validation: PlannedData | None
    """None if the validation set cannot be read, or has no utterance that can be used."""
    for_losses: PlannedData | None
    """The validation set for its loss; None if the loss is not computed."""
    tokenizer: Tokenizer
    removed: dict[str, Removed]
    """Characters that are removed from texts or replaced in them, by the name of the set."""
    round_trips: dict[str, RoundTrip]
    """Parts of texts that labels write otherwise, by the name of the set."""
    warnings: list[str]


def _compile(made: Plan, experiment: Experiment, target: Target, options: PlanOptions, console: Console) -> None:
    """Compiles for the target, prints the table, and writes the file of `--fit`."""
    from asr_jax.cli.plan_target import TargetSteps
    from asr_jax.inference.recognition import used_buckets
    from asr_jax.observe.tables import print_table, say

    if target.accelerator.platform != "cpu":
        # JAX cannot read programs of absent devices from its cache, and would warn at each attempt.
        jax.config.update("jax_enable_compilation_cache", False)
    planned = made.train
    buckets, scale = planned.plan.buckets, planned.index.scale
    # The validation batches depend on the training buckets, which --fit changes.
    validation, losses = (
        tuple(used_buckets(part)) if part and not options.fit else () for part in (made.validation, made.for_losses)
    )
    steps = TargetSteps(
        experiment,
        made.tokenizer,
        length_of(planned, experiment),
        target,
        buckets,
        scale,
        quick=options.quick,
        num_operations=options.operations,
        validation=validation,
        losses=losses,
    )
    tell = functools.partial(print, file=sys.stderr)
    if options.fit:
        buckets, limited = steps.fit(options.margin, tell)
        write_buckets(
            options.fit,
            buckets,
            scale,
            target=target.name,
            devices=described_devices(target.mesh),
            margin=options.margin,
            quick=options.quick,
        )
        say(
            console,
            f"{options.fit}: the most rows that fit the memory, up to data.batching.max_rows "
            f"{experiment.data.batching.max_rows}; train with --data.batching.file {options.fit}",
        )
        if limited:
            say(console, f"warning: {limited}", style="bold yellow")
        steps = replace(steps, buckets=buckets)
    rows = steps.rows(tell)
    of_each = [(_program(row), row.pop("largest", [])) for row in rows]
    print_table(rows, title=f"programs compiled for {target.name}, not run", console=console)
    if kernels := [each for each in experiment.training.kernels if each.endswith(("=triton", "=mosaic_tpu"))]:
        say(console, f"TFLOP and least ms leave out the products within the kernels: {', '.join(kernels)}")
    for name, operations in of_each:
        if operations:
            print_table(operations, title=f"largest operations: {name}", console=console)


def _program(row: dict[str, Any]) -> str:
    """Name of a program in the table of programs: its shape and devices."""
    shape = f" of {row['rows']} × {row['seconds']:.2f} s" if "rows" in row else ""
    return f"{row['program']}{shape}, {counted(row['devices'], 'device')}"


def plan(experiment: Experiment, *, mesh: Mesh | None = None) -> Plan:
    """Plans the training set exactly as `training.setup.set_up` does.

    Without a readable validation set, the training set alone is planned and a warning has the reason.

    Args:
        mesh: Devices of the run. None: the devices of this machine.
    """
    from asr_jax.inference.model import make_model
    from asr_jax.training.recipe import make_recipe
    from asr_jax.training.run import find_run, source_of
    from asr_jax.training.run_data import (
        about_round_trips,
        check_sets,
        count_changed,
        make_tokenizer,
        plan_losses,
        plan_train,
        plan_validation,
        refused_by,
    )
    from asr_jax.training.setup import check_spread, other_devices, other_product, short_run

    folder, data, warnings = find_run(experiment), experiment.data, list[str]()
    folder = source_of(experiment) or folder
    try:
        sets = read_sets(data, seed=experiment.seed)
    except UserError as error:
        try:
            train = read_training(data, seed=experiment.seed)
        except UserError as of_training:
            raise UserError(f"{of_training}{MANIFESTS}") from error
        sets = Sets(train, Utterances.of([]), is_split=False)
        warnings.append(f"the validation set is not planned: {str(error).partition('\n')[0]}")
    tokenizer = make_tokenizer(data, folder, sets.train)
    model = make_model(experiment, tokenizer)
    mesh = mesh or experiment.mesh.mesh()
    planned = plan_train(sets.train, experiment, model, tokenizer, mesh)
    removed, round_trips = count_changed(sets, planned, tokenizer, data)
    warnings += about_round_trips(round_trips, data.tokenizer).values()
    for found in check_sets(sets, data):
        try:
            found.refuse()
            warnings += found.lines()
        except UserError as error:
            warnings.append(f"training would stop, because {error}")
    try:
        check_spread(make_recipe(experiment, model, length_of(planned, experiment)), mesh)
    except UserError as error:
        warnings.append(f"training would stop, because {error}")
    warnings += find_overlap(sets.train, sets.validation).lines()
    warnings += short_run(experiment.optim.schedule, length_of(planned, experiment))
    warnings += other_product(experiment, mesh.size)
    warnings += other_devices(experiment, mesh)
    validation = for_losses = None
    try:
        validation = plan_validation(sets, planned, experiment, tokenizer)
        for_losses = validation
        if experiment.model.recognises:
            for_losses = plan_losses(sets, planned, experiment, model, tokenizer)
    except UserError as error:
        if len(sets.validation) or sets.validation.rejected:
            warnings.append(f"training would stop, because of the validation set: {error}")
    for name, of_set in refused_by(removed, round_trips).items():
        try:
            check_removed(of_set, limit=data.max_removed_share, what=name)
            warnings += filter(None, [about_removed(removed[name], name)])
        except UserError as error:
            warnings.append(f"training would stop, because {error}")
    return Plan(planned, validation, for_losses, tokenizer, removed, round_trips, warnings)


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
            "utterances": len(np.unique(rows[group_of == group])),  # a long one may have several crops
            "hours": float(hours[group_of == group].sum()),
            "epoch hours": float(of_epoch[group]),
            "epoch_share": float(of_epoch[group] / of_epoch.sum()),
        }
        for group, (place, source) in enumerate(groups.T.tolist())
    ]


def validation_rows(planned: PlannedData, experiment: Experiment) -> list[dict[str, Any]]:
    """One row for each entry of data.validation: utterances and hours. A split set has one row."""
    index, paths = planned.index, experiment.data.validation or ("a part of the training set",)
    rows = index.utterances.rows  # a long utterance may have several, one for each piece
    input_of = index.utterances.columns.input_of[rows] * bool(experiment.data.validation)
    hours = index.lengths / index.scale.per_s / 3600
    return [
        {
            "set": path,
            "utterances": len(np.unique(rows[input_of == place])),
            "hours": float(hours[input_of == place].sum()),
        }
        for place, path in enumerate(paths)
    ]


def about_labels(tokenizer: Tokenizer) -> str:
    """Returns the number of labels without the blank, and their texts, the first LABELS_SHOWN of them."""
    texts = ["space" if text == " " else text for text in tokenizer.symbols if text is not None]
    more = f" … and {len(texts) - LABELS_SHOWN:,} more" if len(texts) > LABELS_SHOWN else ""
    return f"labels: {len(texts):,} and the blank: {' '.join(texts[:LABELS_SHOWN])}{more}"


def rejected_rows(planned: PlannedData, validation: PlannedData | None = None) -> list[dict[str, Any]]:
    """One row for each set and each reason for rejection."""
    rows = [
        {
            "reason": name,
            "utterances": num,
            "audio": _duration(of_set.rejections.hours[name]),
            "set": set_name,
            "such as": of_set.rejections.examples[name],
        }
        for set_name, of_set in (("training", planned), ("validation", validation))
        if of_set
        for name, num in of_set.rejections.utterances.items()
    ]
    return rows or [{"reason": "none", "utterances": 0}]


def _duration(hours: float) -> str:
    return f"{hours:,.4g} h" if hours >= 1 else f"{3600 * hours:,.4g} s"


def removed_rows(removed: Mapping[str, Removed]) -> list[dict[str, Any]]:
    """One row for each set and each of the LISTED most frequent characters that are removed or replaced."""
    rows = [
        {
            "set": name,
            "character": part.description,
            "by": part.by,
            "times": part.number,
            "texts": part.texts,
            "such as": part.text[:60],
        }
        for name, of_set in removed.items()
        for part in of_set.parts[:LISTED]
    ]
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
            "padding_share": 1 - float(plan.length_by_bucket[k]) / float(padded[k]) if padded[k] else 0.0,
        }
        for k, bucket in enumerate(plan.buckets)
    ]


def length_of(planned: PlannedData, experiment: Experiment) -> RunLength:
    """Returns the length of the run."""
    from asr_jax.training.setup import groups_of, run_length

    training, groups = experiment.training, groups_of(planned, experiment)
    return RunLength(run_length(training.num_updates, training.num_epochs, groups), groups.updates_per_epoch)


def lines(planned: PlannedData, experiment: Experiment, wanted: Mapping[str, float | None]) -> list[str]:
    """Lines on padding, an epoch, the run, and the accumulation for each requested size of an update.

    Args:
        wanted: Sizes of an update in seconds of audio (`s`) and in `utterances`. None: it is not requested.
    """
    plan, training = planned.plan, experiment.training
    batches, accumulate, speeds = plan.batches_per_epoch, training.accumulate, len(plan.speeds)
    seconds = plan.length_per_epoch / planned.index.scale.per_s
    mean = {"s": seconds / batches, "utterances": plan.entries_per_epoch / batches}
    num_updates, updates = vars(length_of(planned, experiment)).values()
    moved = f", each changed at random by up to {plan.jitter:g}" if plan.jitter else ""
    at_speeds = f" (each utterance at {counted(speeds, 'speed')}{moved})" if speeds > 1 or moved else ""
    entries = f"{counted(plan.entries_per_epoch, 'utterance')}{at_speeds}"
    of_plan = f"{entries}, {seconds / 3600:,.2f} h in {batches:,} batch{'es' * (batches != 1)}"
    if planned.shards:
        epoch = f"the sample of the shards: {of_plan}; the number of items in the shards is not known"
        run = f"the run: {counted(num_updates, 'update')}"
    else:
        epoch = f"an epoch: {of_plan}, {counted(updates, 'update')}"
        run = f"the run: {counted(num_updates, 'update')}, {counted(num_updates / updates, 'epoch')}"
    found = [
        f"padding: {plan.padding_share:.1%} of all batches, in {counted(len(plan.buckets), 'shape')}",
        *lattice_lines(planned, experiment.model.heads),
        epoch,
        run,
        f"mean batch: {_amounts(mean, 1)}",
        f"global batch (all utterances of an update), training.accumulate {accumulate}: {_amounts(mean, accumulate)}",
    ]
    found += [message] if (message := about_crops(planned.index, experiment.data.crop_s)) else []
    for unit, amount in wanted.items():
        if amount is None:
            continue
        reaching = math.ceil(amount / mean[unit])
        more = "; an epoch has fewer batches, so use larger ones" if reaching > batches and not planned.shards else ""
        what = f"{amount / 3600:,.2f} h of audio" if unit == "s" else counted(amount, "utterance")
        found.append(f"a global batch of {what}: --training.accumulate {reaching}{more}")
    return found


def _amounts(mean: dict[str, float], times: int) -> str:
    seconds = mean["s"] * times
    return f"{seconds:,.1f} s of audio ({seconds / 3600:,.2f} h), {mean['utterances'] * times:,.1f} utterances"
