"""Setup of a run before its first update: data, tokenizer, model, plans and optimizer."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from asr_jax.config import Experiment
from asr_jax.core.devices import platform_of
from asr_jax.core.environment import num_threads
from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import MODEL, described_devices
from asr_jax.core.names import counted
from asr_jax.core.programs import TRACED, Programs
from asr_jax.data.batching.bucket_files import AGAIN, load_buckets
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.inference.model import make_model, programs_of
from asr_jax.kernels.implementations import check_selected, selected_kernels
from asr_jax.metrics.measure import ALL, Measure
from asr_jax.models.base import Recogniser
from asr_jax.optim.schedules import RunLength, Schedule
from asr_jax.training.initial_state import InitialState, abstract_state, lower_initial_state
from asr_jax.training.profile import traced_processes
from asr_jax.training.programs import CompiledSteps, compile_steps
from asr_jax.training.recipe import Recipe, make_recipe
from asr_jax.training.run_data import RunData, read_run_data
from asr_jax.training.timetable import Groups


@dataclass(frozen=True)
class Setup:
    """Data, model and settings of a run, which are constant during training."""

    experiment: Experiment
    folder: Path
    source: Path
    """Folder of the run whose checkpoint is continued; `folder`, except for a new run from a checkpoint of another."""
    mesh: Mesh
    layout: Layout
    """Parts and padding rows of the training batches."""
    data: RunData
    recipe: Recipe
    groups: Groups
    num_updates: int

    @property
    def model(self) -> Recogniser:
        return self.recipe.model

    @property
    def recognises(self) -> bool:
        """Whether the model has a recognising head, and validation therefore has error rates."""
        return self.experiment.model.recognises

    @property
    def measure(self) -> Measure:
        """Measure that determines the best checkpoint and patience."""
        return self.data.rate if self.recognises else "loss"

    @property
    def best_of(self) -> str:
        """Set whose measure determines the best checkpoint and patience, or all or mean; all if there is one set."""
        return self.experiment.training.saving.best_of if self.data.set_names else ALL

    @property
    def decoding_digest(self) -> str:
        """Digest of the decoding; error rates are comparable if it is equal. Empty without a recognising head."""
        decoding = self.experiment.primary_decoding
        return decoding.digest() if decoding else ""

    @property
    def head(self) -> str:
        """Name of the primary head; empty without a recognising head."""
        return self.model.recognising if self.recognises else ""

    @property
    def length(self) -> RunLength:
        return RunLength(self.num_updates, self.updates_per_epoch)

    @property
    def programs(self) -> Programs:
        return programs_of(self.experiment, self.data.tokenizer, length=self.length)

    @property
    def devices(self) -> dict[str, Any]:
        """Number and kind of the devices, and number of processes, for checkpoints.

        The kind of a CPU has the number of threads, because it changes the rounding.
        """
        kind = self.mesh.devices.flat[0].device_kind
        if self.mesh.devices.flat[0].platform == "cpu":
            kind += f" with {counted(num_threads(), 'thread')}"
        return {"number": self.layout.num_devices, "processes": self.layout.num_processes, "kind": kind}

    @property
    def updates_per_epoch(self) -> float:
        return self.groups.updates_per_epoch

    def epoch(self, update: int, data_state: dict[str, Any] | None) -> int:
        """Returns the epoch (from 1) of the last batch before an update; of shards, the epoch that is being read."""
        return self.groups.epoch(update) if data_state is None else data_state["epoch"] + 1

    @functools.cached_property
    def shapes(self) -> tuple[Bucket, ...]:
        """Shapes of the parts of the training batches, by the number of the bucket."""
        return tuple(self.layout.shape(bucket) for bucket in self.data.buckets)

    @property
    def most_parts(self) -> int:
        """Largest number of parts of an update's batches."""
        parts = max(self.layout.num_parts(bucket.batch_size) for bucket in self.data.buckets)
        return parts * self.experiment.training.accumulate

    @property
    def padding_rows(self) -> float:
        """Number of rows in an epoch that are added for devices and parts, divided by the number without them."""
        num, sizes = self.data.train.plan.batches_by_bucket(), [each.batch_size for each in self.data.buckets]
        rows = [self.layout.num_parts(size) * self.layout.num_rows(size) for size in sizes]
        return float(num @ rows) / float(num @ sizes) - 1

    def compiled(self, shapes: InitialState, tell: Callable[[Bucket], None] = lambda bucket: None) -> CompiledSteps:
        """Compiles the training programs of all shapes of batches, as `compile_steps`."""
        return compile_steps(
            self.recipe,
            self.shapes,
            shapes,
            scale=self.data.train.index.scale,
            mesh=self.mesh,
            num_batches=self.most_parts,
            sounds=self.data.sounds,
            programs=self.programs,
            tell=tell,
        )

    def continued(self, update: int, position: int) -> "Setup":
        """Returns the setup of a job that continues a run.

        If `training.accumulate` has changed during the run, the batches of the next update still follow those of the
        last one.

        Args:
            position: Position in the plan of the first batch of the next update.
        """
        if self.groups.positions(update).start == position:
            return self
        training = self.experiment.training
        groups = replace(self.groups, first=update, start=position)
        num_updates = run_length(training.num_updates, training.num_epochs, groups)
        length = RunLength(num_updates, groups.updates_per_epoch)
        model = make_model(self.experiment, self.data.tokenizer)
        recipe = make_recipe(self.experiment, model, length, most_rows=self.recipe.most_rows)
        return replace(self, groups=groups, num_updates=num_updates, recipe=recipe)


def set_up(experiment: Experiment, folder: Path, *, source: Path | None = None) -> Setup:
    """Reads and plans the data, and builds model and optimizer.

    Writes nothing except caches.

    Args:
        source: Folder of the run that a new run continues. None: `folder`.

    Raises:
        UserError: If data are missing or do not fit the settings, if more characters are removed from the texts of a
            new run than `Data.max_removed_share`, or if the model cannot be spread over the axis model.
    """
    training = experiment.training
    check_length(training.num_updates, training.num_epochs)
    traced_processes(training)
    if not experiment.model.heads:
        raise UserError("model.heads is empty: expected at least one head to train, such as {'ctc': CTC()}")
    experiment.init.check_exists()
    mesh, source = experiment.mesh.mesh(), source or folder
    check_selected(selected_kernels(training.kernels), platform_of(mesh.devices.flat[0]))
    layout = Layout.of(mesh, split=training.split, sub_batches=experiment.model.sub_batches)
    data = read_run_data(experiment, mesh, source)
    groups = groups_of(data.train, experiment)
    num_updates = run_length(training.num_updates, training.num_epochs, groups)
    length, most_rows = RunLength(num_updates, groups.updates_per_epoch), max(each.batch_size for each in data.buckets)
    recipe = make_recipe(experiment, make_model(experiment, data.tokenizer), length, most_rows=most_rows)
    setup = Setup(experiment, folder, source, mesh, layout, data, recipe, groups, num_updates)
    check_spread(setup.recipe, mesh, seed=experiment.seed, programs=setup.programs)
    return setup


def check_spread(recipe: Recipe, mesh: Mesh, *, seed: int = 0, programs: Programs = TRACED) -> None:
    """Checks that the parameters can be spread over the axis model, before a run begins.

    Raises:
        UserError: If no rule matches a parameter, or a dimension is not divisible.
    """
    if mesh.shape[MODEL] > 1:
        abstract_state(lower_initial_state(recipe, seed=seed, programs=programs), mesh, recipe.sharding)


def other_product(experiment: Experiment, num_devices: int) -> list[str]:
    """Returns a warning if the product of rows, accumulation and devices is not `Batching.rows_product`."""
    batching, accumulate = experiment.data.batching, experiment.training.accumulate
    devices = batching.num_parts(num_devices)
    product = sum(batching.rows) * accumulate * devices
    if product == batching.rows_product or not batching.rows_product:
        return []
    return [
        f"an update has {product:,} rows (data.batching.rows {batching.rows[0]} × training.accumulate {accumulate} × "
        f"{counted(devices, 'device')}), and data.batching.rows_product is {batching.rows_product:,}: "
        "the learning rate may not fit; change the rows or the accumulation, or set rows_product to the new product"
    ]


def other_devices(experiment: Experiment, mesh: Mesh) -> list[str]:
    """Returns a warning if `Batching.file` was made for another kind or number of devices, otherwise nothing."""
    path, now = experiment.data.batching.file, described_devices(mesh)
    if not path or (before := load_buckets(Path(path)).devices) == now:
        return []
    return [
        f"data.batching.file {path} has rows for the memory of {before}, and the devices are {now}: a step may need "
        f"more memory than they have, or use little of it; {AGAIN}"
    ]


def short_run(schedule: Schedule, length: RunLength) -> list[str]:
    """Returns a warning if the run ends before the warm-up of the learning rate, otherwise nothing."""
    warmup = math.ceil(schedule.warmup_length(length))
    if warmup <= length.num_updates:
        return []
    last = float(schedule.build(length)(length.num_updates - 1))
    return [
        f"the run ends before the warm-up of the learning rate: it has {counted(length.num_updates, 'update')}, and "
        f"the warm-up has {warmup:,}. The rate of the last update is {last:.3g}, and the peak is {schedule.peak_lr:g}. "
        "Train longer, or lower the warm-up in --optim.schedule"
    ]


def check_length(num_updates: int, num_epochs: float) -> None:
    """Checks that a run has at least one of two limits.

    Raises:
        UserError: If both are 0.
    """
    if not (num_updates or num_epochs):
        raise UserError(
            "training.num_updates and training.num_epochs are both 0: expected one of them above 0, such as --epochs "
            "10 (an imported model has no length). To use a published model without training: python -m "
            "asr_jax.import SOURCE --out RUN"
        )


def groups_of(train: PlannedData, experiment: Experiment) -> Groups:
    """Returns the batches of each update.

    Raises:
        UserError: If settings need the number of batches of an epoch, and it is not known.
    """
    training = experiment.training
    needing = {
        "training.num_epochs": training.num_epochs,
        "training.limits.epochs_this_job": training.limits.epochs_this_job,
        "training.saving.milestone_epochs": training.saving.milestone_epochs,
        "training.pass_states": training.pass_states.is_on,
        "a warm-up in epochs (optim.schedule)": math.isinf(
            experiment.optim.schedule.warmup_length(RunLength(1, math.inf))
        ),
    }
    if train.batches_per_epoch is None and (found := [name for name, value in needing.items() if value]):
        raise UserError(
            f"{', '.join(found)} with data.order sharded: the number of items is not known; expected lengths in "
            "updates (training.num_updates), and data.order planned for state passing"
        )
    return Groups(train.batches_per_epoch, training.accumulate, training.epoch_end)


def run_length(num_updates: int, num_epochs: float, groups: Groups) -> int:
    """Returns the number of updates of a run that ends at the lower of two limits, of which 0 is none.

    Raises:
        UserError: As `check_length`.
    """
    check_length(num_updates, num_epochs)
    limits = [num_updates] if num_updates else []
    if num_epochs:
        limits.append(math.ceil(groups.updates_until(num_epochs)))
    return min(limits)
