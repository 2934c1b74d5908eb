"""Setup of a run before its first update: data, tokenizer, model, plans and optimizer."""

import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from asr_jax.audio.augmentation import AudioAugmentation
from asr_jax.audio.sounds import read_sounds
from asr_jax.config import Experiment, Training, load_experiment
from asr_jax.core.devices import platform_of
from asr_jax.core.errors import UserError, nearest
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import MODEL, described_devices, num_row_shards
from asr_jax.core.names import counted
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import digest_of
from asr_jax.core.run_folder import EXPERIMENT, TOKENIZER
from asr_jax.core.sharding import Sharding
from asr_jax.data.batching.buckets import AGAIN, Bucket, load_buckets
from asr_jax.data.batching.dataset import Data, PlannedData, Sets, check_labels, plan_training, read_sets
from asr_jax.data.batching.evaluation import about_long, plan_evaluation, plan_with_labels
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.batching.overlap import Overlap, find_overlap
from asr_jax.data.batching.removals import Removed, check_removed, count_absent, count_removed
from asr_jax.data.manifests.checking import AudioCheck, check_audio
from asr_jax.data.manifests.inputs import Role
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.model import make_model, programs_of
from asr_jax.inference.trained import WHOLE, longest_and_batch_s
from asr_jax.kernels.implementations import check_selected, selected_kernels
from asr_jax.metrics.measure import ALL, MEAN, Measure
from asr_jax.models.base import EncoderSettings, Recogniser
from asr_jax.optim.lora import LORA
from asr_jax.optim.schedules import RunLength, Schedule
from asr_jax.text.base import DESCRIPTION
from asr_jax.text.tokenizers import Tokenizer, given_tokenizer, load_tokenizer, train_tokenizer
from asr_jax.training.memory_fit import ANY_LENGTH, MemoryFit
from asr_jax.training.profile import traced_processes
from asr_jax.training.run import was_saved
from asr_jax.training.state import Recipe, abstract_state, lower_initial_state
from asr_jax.training.timetable import Groups

LEAST_WHOLE_S = 40.0
"""Shortest default of the longest audio in seconds that validation computes at once."""
ADDED = "added"
"""Key of the fingerprint of the recordings that augmentations add."""


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
    tokenizer: Tokenizer
    recipe: Recipe
    sets: Sets
    train: PlannedData
    validation: PlannedData
    for_losses: PlannedData | None
    """Validation set for the loss; None if the loss is not computed."""
    num_updates: int
    groups: Groups
    sounds: dict[str, np.ndarray]
    """Recordings that augmentations add."""
    removed: dict[str, Removed]
    """Characters that are removed from the texts or replaced in them, by the name of the set."""
    absent: Removed
    """Characters of the validation texts that the vocabulary lacks. Error rates count them."""
    overlap: Overlap
    """Utterances of the validation set that the training set also has."""
    audio: tuple[AudioCheck, ...]
    """Results of opening the audio of some utterances of each input."""

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
        return "wer" if self.recognises else "loss"

    @property
    def set_names(self) -> tuple[str, ...]:
        """Names of the validation sets, by their number in `columns.input_of`; empty if there is only one set."""
        return self.sets.names if len(self.sets.names) > 1 else ()

    @property
    def best_of(self) -> str:
        """Set whose measure determines the best checkpoint and patience, or all or mean; all if there is one set."""
        return self.experiment.training.best_of if self.set_names else ALL

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
        return programs_of(self.experiment, self.tokenizer, length=self.length)

    @property
    def devices(self) -> dict[str, Any]:
        """Number and kind of the devices, and number of processes, for checkpoints."""
        kind = self.mesh.devices.flat[0].device_kind
        return {"number": self.layout.num_devices, "processes": self.layout.num_processes, "kind": kind}

    def data_fingerprints(self) -> dict[str, str]:
        """Returns fingerprints of the training data, the validation data and added recordings; independent of paths."""
        # Another plan of the validation set does not change its figures.
        return {"training": self.train.fingerprint(), "validation": self.validation.of_set} | (
            {ADDED: digest_of(self.sounds)} if self.sounds else {}
        )

    def long_validation(self) -> str:
        """Returns a message on validation utterances that are not computed at once; empty if there are none."""
        return about_long(self.validation, has_losses=self.for_losses is not None)

    @property
    def updates_per_epoch(self) -> float:
        return self.groups.updates_per_epoch

    def epoch(self, update: int, data_state: dict[str, Any] | None) -> int:
        """Returns the epoch (from 1) of the last batch before an update; of shards, the epoch that is being read.

        Args:
            data_state: `LoadedBatch.state` of that batch.
        """
        return self.groups.epoch(update) if data_state is None else data_state["epoch"] + 1

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """Shapes of the parts of the training batches, by the number of the bucket."""
        return tuple(self.layout.shape(bucket) for bucket in self.train.plan.buckets)

    @property
    def most_parts(self) -> int:
        """Largest number of parts of an update's batches."""
        parts = max(self.layout.num_parts(bucket.batch_size) for bucket in self.train.plan.buckets)
        return parts * self.experiment.training.accumulate

    @property
    def padding_rows(self) -> float:
        """Number of rows in an epoch that are added for devices and parts, divided by the number without them."""
        num, sizes = self.train.plan.batches_by_bucket(), [each.batch_size for each in self.train.plan.buckets]
        rows = [self.layout.num_parts(size) * self.layout.num_rows(size) for size in sizes]
        return float(num @ rows) / float(num @ sizes) - 1

    def continued(self, update: int, position: int) -> "Setup":
        """Returns the setup of a job that continues a run.

        If `training.accumulate` has changed during the run, the batches of the next update still follow those of the
        last one.

        Args:
            update: Number of updates so far.
            position: Position in the plan of the first batch of the next update.
        """
        if self.groups.positions(update).start == position:
            return self
        training = self.experiment.training
        groups = replace(self.groups, first=update, start=position)
        num_updates = run_length(training.num_updates, training.num_epochs, groups)
        length = RunLength(num_updates, groups.updates_per_epoch)
        model = make_model(self.experiment, self.tokenizer)
        recipe = make_recipe(self.experiment, model, length, most_rows=self.recipe.most_rows)
        return replace(self, groups=groups, num_updates=num_updates, recipe=recipe)


NO_EPOCH = 1 << 40
"""Updates of an epoch of shards, whose number of items is not known."""


def set_up(experiment: Experiment, folder: Path, *, source: Path | None = None) -> Setup:
    """Reads and plans the data, and builds model and optimizer.

    Writes nothing except caches.

    Args:
        experiment: Settings of the run.
        source: Folder of the run that a new run continues. None: `folder`.

    Raises:
        UserError: If data are missing or do not fit the settings, if more characters are removed from the texts of a
            new run than `Data.max_removed_share`, or if the model cannot be spread over the axis model.
    """
    data, training = experiment.data, experiment.training
    check_length(training.num_updates, training.num_epochs)
    traced_processes(training)
    if data.order == "sharded" and (training.num_epochs or training.pass_states.is_on):
        raise UserError(
            "data.order sharded with training.num_epochs or training.pass_states: the number of items is not known; "
            "expected training.num_updates, and data.order planned for state passing"
        )
    if not experiment.model.heads:
        raise UserError("model.heads is empty: expected at least one head to train, such as {'ctc': CTC()}")
    experiment.init.check_exists()
    mesh, source = experiment.mesh.mesh(), source or folder
    check_selected(selected_kernels(training.kernels), platform_of(mesh.devices.flat[0]))
    layout = Layout.of(mesh, split=training.split, sub_batches=experiment.model.sub_batches)
    sets = read_sets(data, seed=experiment.seed)
    check_best_of(training.best_of, sets)
    audio = check_sets(sets, data)
    for check in audio:
        check.refuse()
    tokenizer = make_tokenizer(data, source, sets.train)
    model = make_model(experiment, tokenizer)
    try:
        train = plan_train(sets.train, experiment, model, tokenizer, mesh)
    except UserError as error:
        raise UserError(f"{error}{_of_other_data(experiment, source)}") from error
    check_labels(train, tokenizer)
    removed = count_removed_of(sets, train, tokenizer, data)
    if not was_saved(source):
        for name, of_set in removed.items():
            check_removed(of_set, limit=data.max_removed_share, what=name)
    of_audio = [each for each in experiment.model.augment if isinstance(each, AudioAugmentation)]
    if of_audio and train.index.scale.of_features:
        raise UserError(
            f"model.augment has {type(of_audio[0]).__name__}, which changes audio, but the training data are "
            "precomputed features: remove it, or train on audio"
        )
    sounds = _sounds(experiment)
    groups = groups_of(train, experiment)
    num_updates = run_length(training.num_updates, training.num_epochs, groups)
    validation = plan_validation(sets, train, experiment, tokenizer)
    for_losses = plan_losses(sets, train, experiment, model, tokenizer) if experiment.model.recognises else validation
    setup = Setup(
        experiment=experiment,
        folder=folder,
        source=source,
        mesh=mesh,
        layout=layout,
        tokenizer=tokenizer,
        recipe=make_recipe(
            experiment,
            model,
            RunLength(num_updates, groups.updates_per_epoch),
            most_rows=max(bucket.batch_size for bucket in train.plan.buckets),
        ),
        sets=sets,
        train=train,
        validation=validation,
        for_losses=for_losses,
        num_updates=num_updates,
        groups=groups,
        sounds=sounds,
        removed=removed,
        absent=count_absent(sets.validation, tokenizer, takes_ids=data.tokenizer.takes_ids),
        overlap=find_overlap(sets.train, sets.validation),
        audio=tuple(audio),
    )
    check_spread(setup.recipe, mesh, seed=experiment.seed, programs=setup.programs)
    return setup


def check_spread(recipe: Recipe, mesh: Mesh, *, seed: int = 0, programs: Programs = TRACED) -> None:
    """Checks that the parameters can be spread over the axis model, before a run begins.

    Args:
        recipe: Settings of the training step.
        seed: Random seed of the run, by which `programs` finds its traced program.
        programs: Cache of traced programs.

    Raises:
        UserError: If no rule matches a parameter, or a dimension is not divisible.
    """
    if mesh.shape[MODEL] > 1:
        abstract_state(lower_initial_state(recipe, seed=seed, programs=programs), mesh, recipe.sharding)


def plan_train(
    utterances: Utterances, experiment: Experiment, model: Recogniser, tokenizer: Tokenizer, mesh: Mesh
) -> PlannedData:
    """Plans the training set. With `data.sampling.memory_gb`, training steps are compiled to measure their memory.

    Args:
        utterances: Training set.
        experiment: Settings of the run.
        mesh: Devices of the job.

    Raises:
        UserError: As `plan_training`, or if the smallest batch does not fit `memory_gb`.
    """
    training, settings, budget_gb = experiment.training, experiment.model, experiment.data.sampling.memory_gb
    fit = None
    if budget_gb:
        fit = MemoryFit(
            1e9 * budget_gb, make_recipe(experiment, model, ANY_LENGTH),
            Layout.of(mesh, split=training.split, sub_batches=settings.sub_batches), mesh,
            accumulate=training.accumulate, seed=experiment.seed, sounds=_sounds(experiment),
            programs=programs_of(experiment, tokenizer, length=ANY_LENGTH),
        )  # fmt: skip
    return plan_training(
        utterances, experiment.data, tokenizer=tokenizer, output_length=model.label_length,
        frames_needed=settings.frames_needed, front_end=settings.front_end, seed=experiment.seed,
        row_parts=settings.row_parts, devices=num_row_shards(mesh), fit_rows=fit,
    )  # fmt: skip


def _sounds(experiment: Experiment) -> dict[str, np.ndarray]:
    """Returns the recordings that augmentations add."""
    of_audio = [each for each in experiment.model.augment if isinstance(each, AudioAugmentation)]
    return read_sounds(of_audio, rate_hz=experiment.model.front_end.rate_hz, threads=experiment.data.threads)


def other_product(experiment: Experiment, num_devices: int) -> list[str]:
    """Returns a warning if the product of rows, accumulation and devices is not `Sampling.rows_product`.

    Args:
        experiment: Settings of the run.
        num_devices: Number of devices of the job.
    """
    sampling, accumulate = experiment.data.sampling, experiment.training.accumulate
    devices = sampling.devices or num_devices
    product = sampling.device_rows * accumulate * devices
    if product == sampling.rows_product or not sampling.rows_product:
        return []
    return [
        f"an update has {product:,} rows (data.sampling.device_rows {sampling.device_rows} × training.accumulate "
        f"{accumulate} × {counted(devices, 'device')}), and data.sampling.rows_product is {sampling.rows_product:,}: "
        "the learning rate may not fit; change the rows or the accumulation, or set rows_product to the new product"
    ]


def other_devices(experiment: Experiment, mesh: Mesh) -> list[str]:
    """Returns a warning if `Buckets.file` was made for another kind or number of devices, otherwise nothing.

    Args:
        experiment: Settings of the run.
    """
    path, now = experiment.data.buckets.file, described_devices(mesh)
    if not path or (before := load_buckets(Path(path)).devices) == now:
        return []
    return [
        f"data.buckets.file {path} has rows for the memory of {before}, and the devices are {now}: a step may need "
        f"more memory than they have, or use little of it; {AGAIN}"
    ]


def validation_limits(train: PlannedData, training: Training, data: Data) -> BatchLimits:
    """Returns the limits of the batches of validation, which have at most as much audio as those of training.

    Args:
        train: The planned training set.
    """
    longest_s, batch_s = longest_and_batch_s(train.plan.buckets, train.index.scale)
    whole_s = training.validate_max_duration_s or max(WHOLE * longest_s, LEAST_WHOLE_S)
    return BatchLimits(batch_s, longest_s=whole_s, multiple=data.buckets.batch_multiple)


def plan_validation(sets: Sets, train: PlannedData, experiment: Experiment, tokenizer: Tokenizer) -> PlannedData:
    """Plans the validation set, within the limits of `validation_limits`. The plan does not depend on the devices.

    Args:
        train: The planned training set.
        experiment: Settings of the run.

    Raises:
        NoUtterances: If no utterance is left.
    """
    data, model = experiment.data, experiment.model
    longest_s, _ = longest_and_batch_s(train.plan.buckets, train.index.scale)
    return plan_evaluation(
        sets.validation, validation_limits(train, experiment.training, data), front_end=model.front_end,
        tokenizer=tokenizer, takes_ids=data.tokenizer.takes_ids, num_devices=1,
        piece_s=0.0 if model.recognises else longest_s,
    )  # fmt: skip


def plan_losses(
    sets: Sets, train: PlannedData, experiment: Experiment, model: Recogniser, tokenizer: Tokenizer
) -> PlannedData | None:
    """Plans the validation set for `training.validate_loss` of a model that recognises.

    Args:
        train: The planned training set.
        experiment: Settings of the run.

    Returns:
        The plan; None if the loss is not computed.
    """
    training, data = experiment.training, experiment.data
    if not training.validate_loss:
        return None
    planned = plan_with_labels(
        sets.validation, validation_limits(train, training, data), front_end=experiment.model.front_end,
        tokenizer=tokenizer, takes_ids=data.tokenizer.takes_ids, output_length=model.label_length,
        frames_needed=experiment.model.frames_needed, num_devices=1,
    )  # fmt: skip
    check_labels(planned, tokenizer)
    return planned


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


def _of_other_data(experiment: Experiment, folder: Path) -> str:
    """Returns the hint that the training set is not that of the run in the folder; empty if it is, or without a run."""
    if not (folder / EXPERIMENT).is_file() or not was_saved(folder):
        return ""
    before, now = load_experiment(folder / EXPERIMENT).data.train, experiment.data.train
    if before == now:
        return ""
    return (
        f".\ndata.train is {' '.join(now)}, but the run {folder} was trained on {' '.join(before)}, and its tokenizer "
        "has only the labels of those texts. To train on other data, start a new run from its weights: --config FILE "
        f"--init-from {folder} --run-dir OTHER --data.train {' '.join(now)}"
    )


def check_best_of(best_of: str, sets: Sets) -> None:
    """Checks the name of the validation set that chooses the best checkpoint.

    Raises:
        UserError: If there is no such set, or if `Data.max_validation_utterances` leaves no utterance of it.
    """
    known = (ALL, MEAN, *sets.names)
    if best_of not in known:
        raise UserError(
            f"training.best_of is {best_of!r}: expected the name of a validation set, all or mean: "
            f"{', '.join(dict.fromkeys((*sets.names, ALL, MEAN)))}{nearest(best_of, known)}"
        )
    inputs = sets.validation.columns.input_of[sets.validation.rows]
    counting = [(number, name) for number, name in enumerate(sets.names) if best_of in (MEAN, name)]
    if empty := [name for number, name in counting if not (inputs == number).any()]:
        raise UserError(
            f"training.best_of is {best_of!r}, but data.max_validation_utterances leaves no utterance of "
            f"{', '.join(empty)}: raise it, or set it to 0 for all utterances"
        )


def check_sets(sets: Sets, data: Data) -> list[AudioCheck]:
    """Opens the audio of some utterances of each input, or of all with data.check_all."""
    train: list[tuple[Utterances, tuple[str, ...], Role]] = [(sets.train, data.train, "train")]
    both: tuple[tuple[Utterances, tuple[str, ...], Role], ...] = (
        *([] if sets.shards else train),
        (sets.validation, sets.validation_paths, "train" if sets.is_split else "validation"),
    )
    return [check for of, paths, role in both for check in check_audio(of, paths, role=role, opens_all=data.check_all)]


def count_removed_of(sets: Sets, train: PlannedData, tokenizer: Tokenizer, data: Data) -> dict[str, Removed]:
    """Counts the characters that are removed from the texts of the training set and of the validation set.

    Error rates do not depend on the vocabulary. Only the normaliser's removals count in the validation set;
    `count_absent` counts the characters that the vocabulary lacks.

    Args:
        sets: Training and validation utterances.
        train: The planned training set.
    """
    takes_ids = data.tokenizer.takes_ids
    return {
        "training": count_removed(sets.train, tokenizer, takes_ids=takes_ids, labels=train.index.labels),
        "validation": count_removed(sets.validation, tokenizer, takes_ids=takes_ids),
    }


def make_recipe(experiment: Experiment, model: Recogniser, length: RunLength, *, most_rows: int = 1) -> Recipe:
    """Builds the settings of the training step.

    Args:
        experiment: Settings of the run.
        most_rows: Rows of the largest batch, for state passing.
    """
    training = experiment.training
    return Recipe(
        model.clone(sub_batches=max(model.sub_batches // training.split, 1)),
        {name: head.scale for name, head in experiment.model.heads.items()},
        experiment.optim.build(length, layer_factors(experiment)),
        ema=training.ema,
        loss_scale=training.loss_scale if training.precision == "f16" else None,
        lora=experiment.lora,
        sharding=Sharding(experiment.model.encoder.model_axis_rules(), experiment.mesh.min_sharded),
        passing=training.pass_states,
        most_rows=most_rows if training.pass_states.is_on else 1,
    )


def layer_factors(experiment: Experiment) -> Callable[[str, Any], Any]:
    """Returns a function that computes the learning rate factor of a parameter from its path and array.

    The factor is layer_decay ** (num_depths - depth) in the encoder and 1 elsewhere. Arrays of stacked layers have
    one factor per layer.

    Raises:
        UserError: If layer_decay is set and the encoder does not define the depths of its layers.
    """
    encoder, decay = experiment.model.encoder, experiment.optim.layer_decay
    if decay != 1.0 and type(encoder).depths is EncoderSettings.depths:
        raise UserError(
            f"optim.layer_decay is {decay}, but {type(encoder).__name__} does not define the depths of its layers "
            "(depths, num_depths): expected 1"
        )

    def factor(path: str, array: Any) -> Any:
        own = path.removeprefix(f"{LORA}/")
        if decay == 1.0 or not own.startswith("encoder/"):
            return 1.0
        powers = [decay ** (encoder.num_depths() - depth) for depth in encoder.depths(own.removeprefix("encoder/"))]
        return (
            powers[0] if len(powers) == 1 else np.reshape(np.array(powers, np.float32), (-1, *[1] * (array.ndim - 1)))
        )

    return factor


def make_tokenizer(data: Data, folder: Path, utterances: Utterances) -> Tokenizer:
    """Returns the tokenizer of a run.

    It is the saved one if the run continues, otherwise the one of data.tokenizer.path, otherwise one that is trained on
    the training texts.

    Raises:
        UserError: If the training data have token ids but no texts.
    """
    if (folder / TOKENIZER / DESCRIPTION).is_file() and was_saved(folder):
        return load_tokenizer(folder / TOKENIZER)
    if data.tokenizer.path:
        return given_tokenizer(data.tokenizer)
    columns = utterances.columns
    if data.tokenizer.kind not in ("ids", "none") and columns.has_labels.any() and not columns.num_chars.any():
        raise UserError(
            "the training data have token ids but no texts: expected --data.tokenizer.kind ids, or "
            "--data.tokenizer.path with the tokenizer that produced the ids"
        )
    if not utterances.folder:
        return _trained_tokenizer(data, utterances)
    # Cached, because a tokenizer of a million texts takes seconds, even one of characters.
    made_of = repr(data.tokenizer).encode() + utterances.rows.tobytes()
    folder = utterances.folder / f"tokenizer-{hashlib.sha256(made_of).hexdigest()[:16]}"
    try:
        return load_tokenizer(folder)
    except UserError:
        tokenizer = _trained_tokenizer(data, utterances)
        with contextlib.suppress(OSError):  # the cache may belong to another user
            tokenizer.save(folder)
        return tokenizer


def _trained_tokenizer(data: Data, utterances: Utterances) -> Tokenizer:
    largest_id = int(utterances.columns.labels.values.max(initial=0))
    return train_tokenizer(data.tokenizer, utterances.texts(), largest_id=largest_id)


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
    """Returns the batches of each update. Shards have no epochs of batches: an epoch of updates never ends."""
    training, is_sharded = experiment.training, experiment.data.order == "sharded"
    of_epoch = NO_EPOCH * training.accumulate if is_sharded else train.plan.batches_per_epoch
    return Groups(of_epoch, training.accumulate, training.epoch_end)


def run_length(num_updates: int, num_epochs: float, groups: Groups) -> int:
    """Returns the number of updates of a run that ends at the lower of two limits.

    Args:
        num_updates: Limit in updates. 0: no limit.
        num_epochs: Limit in epochs. 0: no limit.
        groups: Batches of each update.

    Raises:
        UserError: As `check_length`.
    """
    check_length(num_updates, num_epochs)
    limits = [num_updates] if num_updates else []
    if num_epochs:
        limits.append(math.ceil(groups.updates_until(num_epochs)))
    return min(limits)
