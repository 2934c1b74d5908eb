"""Data of a run before its first update: sets, tokenizer, plans of batches, and checks."""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jax.sharding import Mesh

from asr_jax.audio.augmentation import AudioAugmentation
from asr_jax.audio.sounds import read_sounds
from asr_jax.config import Experiment, Training, load_experiment, of_run
from asr_jax.core.environment import reading_threads
from asr_jax.core.errors import UserError, nearest
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import num_row_devices
from asr_jax.core.paths import quoted
from asr_jax.core.pytrees import digest_of
from asr_jax.core.run_folder import EXPERIMENT, TOKENIZER
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import Data, PlannedData, check_labels, plan_training
from asr_jax.data.batching.evaluation import plan_evaluation, plan_with_labels
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.batching.overlap import Overlap, find_overlap
from asr_jax.data.batching.removals import Removed, check_removed, count_removed
from asr_jax.data.batching.round_trip import RoundTrip, about_round_trip, count_round_trip
from asr_jax.data.batching.sets import Sets, read_sets
from asr_jax.data.manifests.cache import TEXT_SOURCES, digest_of_code
from asr_jax.data.manifests.checking import AudioCheck, check_audio
from asr_jax.data.manifests.inputs import Role
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.model import make_model, programs_of
from asr_jax.inference.recognition import reference
from asr_jax.inference.trained import WHOLE, longest_and_batch_s
from asr_jax.metrics.measure import ALL, MEAN, rate_of
from asr_jax.models.base import Recogniser
from asr_jax.text.base import DESCRIPTION
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer, load_tokenizer, train_tokenizer
from asr_jax.training.memory_fit import ANY_LENGTH, MemoryFit
from asr_jax.training.recipe import make_recipe
from asr_jax.training.run import was_saved

LEAST_WHOLE_S = 40.0
"""Shortest default of the longest audio in seconds that validation computes at once."""
ADDED = "added"
"""Key of the fingerprint of the recordings that augmentations add."""


@dataclass(frozen=True)
class RunData:
    """Data of a run: sets of utterances, the tokenizer of their texts, and plans of their batches."""

    tokenizer: Tokenizer
    sets: Sets
    train: PlannedData
    validation: PlannedData
    for_losses: PlannedData | None
    """Validation set for the loss; None if the loss is not computed."""
    sounds: dict[str, np.ndarray]
    """Recordings that augmentations add."""
    removed: dict[str, Removed]
    """Characters that the normaliser removes from the texts or replaces in them, by the name of the set."""
    round_trips: dict[str, RoundTrip]
    """Parts of the texts that labels write otherwise, by the name of the set."""
    overlap: Overlap
    """Utterances of the validation set that the training set also has."""
    rate: Literal["wer", "cer"]
    """Error rate by which the validation set is judged."""
    audio: tuple[AudioCheck, ...]
    """Results of opening the audio of some utterances of each input."""

    @property
    def set_names(self) -> tuple[str, ...]:
        """Names of the validation sets, by their number in `columns.input_of`; empty if there is only one set."""
        return self.sets.names if len(self.sets.names) > 1 else ()

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Shapes of the training batches."""
        return self.train.plan.buckets

    def fingerprints(self) -> dict[str, str]:
        """Returns fingerprints of the training data, the validation data and added recordings; independent of paths."""
        # Another plan of the validation set does not change its figures.
        return {"training": self.train.fingerprint(), "validation": self.validation.of_set} | (
            {ADDED: digest_of(self.sounds)} if self.sounds else {}
        )


def read_run_data(experiment: Experiment, mesh: Mesh, source: Path) -> RunData:
    """Reads and plans the data of a run. Writes nothing except caches.

    Args:
        source: Folder of the run that is continued, or of a new run.

    Raises:
        UserError: If data are missing or do not fit the settings, or if more characters are removed from the texts of
            a new run than `Data.max_removed_share`.
    """
    data, training = experiment.data, experiment.training
    sets = read_sets(data, seed=experiment.seed)
    check_best_of(training.saving.best_of, sets)
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
    removed, round_trips = count_changed(sets, train, tokenizer, data)
    if not was_saved(source):
        for name, of_set in refused_by(removed, round_trips).items():
            check_removed(of_set, limit=data.max_removed_share, what=name)
    of_audio = [each for each in experiment.model.augment if isinstance(each, AudioAugmentation)]
    if of_audio and train.index.scale.of_features:
        raise UserError(
            f"model.augment has {type(of_audio[0]).__name__}, which changes audio, but the training data are "
            "precomputed features: remove it, or train on audio"
        )
    validation = plan_validation(sets, train, experiment, tokenizer)
    return RunData(
        tokenizer=tokenizer,
        sets=sets,
        train=train,
        validation=validation,
        for_losses=(
            plan_losses(sets, train, experiment, model, tokenizer) if experiment.model.recognises else validation
        ),
        sounds=_sounds(experiment),
        removed=removed,
        round_trips=round_trips,
        overlap=find_overlap(sets.train, sets.validation),
        rate=rate_of(reference(utterance, tokenizer) for utterance in sets.validation),
        audio=tuple(audio),
    )


def plan_train(
    utterances: Utterances, experiment: Experiment, model: Recogniser, tokenizer: Tokenizer, mesh: Mesh
) -> PlannedData:
    """Plans the training set. With a budget of memory, training steps are compiled to measure their memory.

    Raises:
        UserError: As `plan_training`, or if the smallest batch does not fit the memory.
    """
    training, settings, batching = experiment.training, experiment.model, experiment.data.batching
    fit = None
    if batching.fits_memory:
        fit = MemoryFit(
            1e9 * batching.budget,
            make_recipe(experiment, model, ANY_LENGTH),
            Layout.of(mesh, split=training.split, sub_batches=settings.sub_batches),
            mesh,
            accumulate=training.accumulate,
            seed=experiment.seed,
            sounds=_sounds(experiment),
            programs=programs_of(experiment, tokenizer, length=ANY_LENGTH),
        )
    return plan_training(
        utterances,
        experiment.data,
        tokenizer=tokenizer,
        output_length=model.label_length,
        frames_needed=settings.frames_needed,
        front_end=settings.front_end,
        seed=experiment.seed,
        row_parts=settings.row_parts,
        devices=num_row_devices(mesh),
        fit_rows=fit,
    )


def _sounds(experiment: Experiment) -> dict[str, np.ndarray]:
    """Returns the recordings that augmentations add."""
    of_audio = [each for each in experiment.model.augment if isinstance(each, AudioAugmentation)]
    return read_sounds(
        of_audio, rate_hz=experiment.model.front_end.rate_hz, threads=reading_threads(experiment.data.threads)
    )


def validation_limits(train: PlannedData, training: Training, data: Data) -> BatchLimits:
    """Returns the limits of validation batches. They have at most as much audio as training batches."""
    longest_s, batch_s = longest_and_batch_s(train.plan.buckets, train.index.scale)
    whole_s = training.validation.max_duration_s or max(WHOLE * longest_s, LEAST_WHOLE_S)
    return BatchLimits(batch_s, longest_s=whole_s, multiple=data.batching.row_multiple)


def plan_validation(sets: Sets, train: PlannedData, experiment: Experiment, tokenizer: Tokenizer) -> PlannedData:
    """Plans the validation set, within the limits of `validation_limits`. The plan does not depend on the devices.

    Raises:
        NoUtterances: If no utterance is left.
    """
    data, model = experiment.data, experiment.model
    longest_s, _ = longest_and_batch_s(train.plan.buckets, train.index.scale)
    return plan_evaluation(
        sets.validation,
        validation_limits(train, experiment.training, data),
        front_end=model.front_end,
        tokenizer=tokenizer,
        takes_ids=data.tokenizer.takes_ids,
        num_devices=1,
        piece_s=0.0 if model.recognises else longest_s,
    )


def plan_losses(
    sets: Sets, train: PlannedData, experiment: Experiment, model: Recogniser, tokenizer: Tokenizer
) -> PlannedData | None:
    """Plans the validation set for `training.validation.loss` of a model that recognises; None if it is off."""
    training, data = experiment.training, experiment.data
    if not training.validation.loss:
        return None
    planned = plan_with_labels(
        sets.validation,
        validation_limits(train, training, data),
        front_end=experiment.model.front_end,
        tokenizer=tokenizer,
        takes_ids=data.tokenizer.takes_ids,
        output_length=model.label_length,
        frames_needed=experiment.model.frames_needed,
        num_devices=1,
    )
    check_labels(planned, tokenizer)
    return planned


def _of_other_data(experiment: Experiment, folder: Path) -> str:
    """Returns the hint that the training set is not that of the run in the folder; empty if it is, or without a run."""
    if not (folder / EXPERIMENT).is_file() or not was_saved(folder):
        return ""
    before, now = load_experiment(folder / EXPERIMENT).data.train, of_run(experiment).data.train
    if before == now:
        return ""
    return (
        f".\ndata.train is {' '.join(now)}, but the run {folder} was trained on {' '.join(before)}, and its tokenizer "
        "has only the labels of those texts. To train on other data, start a new run from its weights: --config FILE "
        f"--init-from {quoted(folder)} --run-dir OTHER --data.train {' '.join(now)}"
    )


def check_best_of(best_of: str, sets: Sets) -> None:
    """Checks the name of the validation set that chooses the best checkpoint.

    Raises:
        UserError: If there is no such set, or if `Data.max_validation_utterances` leaves no utterance of it.
    """
    known = (ALL, MEAN, *sets.names)
    if best_of not in known:
        raise UserError(
            f"training.saving.best_of is {best_of!r}: expected the name of a validation set, all or mean: "
            f"{', '.join(dict.fromkeys((*sets.names, ALL, MEAN)))}{nearest(best_of, known)}"
        )
    inputs = sets.validation.columns.input_of[sets.validation.rows]
    counting = [(number, name) for number, name in enumerate(sets.names) if best_of in (MEAN, name)]
    if empty := [name for number, name in counting if not (inputs == number).any()]:
        raise UserError(
            f"training.saving.best_of is {best_of!r}, but data.max_validation_utterances leaves no utterance of "
            f"{', '.join(empty)}: raise it, or set it to 0 for all utterances"
        )


def check_sets(sets: Sets, data: Data) -> list[AudioCheck]:
    """Opens the audio of some utterances of each input, or of all with data.check_all."""
    train: list[tuple[Utterances, tuple[str, ...], Role]] = [(sets.train, data.train, "train")]
    both: tuple[tuple[Utterances, tuple[str, ...], Role], ...] = (
        *([] if sets.train.shards else train),
        (sets.validation, sets.validation_paths, "train" if sets.is_split else "validation"),
    )
    return [check for of, paths, role in both for check in check_audio(of, paths, role=role, opens_all=data.check_all)]


def count_changed(
    sets: Sets, train: PlannedData, tokenizer: Tokenizer, data: Data
) -> tuple[dict[str, Removed], dict[str, RoundTrip]]:
    """Counts the changes in the texts of the training set and of the validation set.

    Returns:
        By the name of the set, the characters that the normaliser removes or replaces, and the parts that labels write
        otherwise.
    """
    given = data.tokenizer.takes_ids
    of_sets = {"training": (sets.train, train.index.labels), "validation": (sets.validation, None)}
    return (
        {name: count_removed(each, tokenizer, takes_ids=given) for name, (each, _) in of_sets.items()},
        {
            name: count_round_trip(each, tokenizer, takes_ids=given, labels=labels)
            for name, (each, labels) in of_sets.items()
        },
    )


def refused_by(removed: Mapping[str, Removed], round_trips: Mapping[str, RoundTrip]) -> dict[str, Removed]:
    """Returns the parts that `Data.max_removed_share` limits, by the name of the set.

    These are the parts that the normaliser removes or replaces, and in the training set those without a label. Parts of
    validation texts without a label are not removed, but count as errors.
    """
    of_training = removed["training"]
    parts = (*of_training.parts, *round_trips["training"].missing.parts)
    return {**removed, "training": replace(of_training, parts=parts)}


def about_round_trips(round_trips: Mapping[str, RoundTrip], settings: TokenizerSettings) -> dict[str, str]:
    """Returns a message for each set with texts that labels write otherwise, by the name of the set."""
    saved = Path(settings.path) / DESCRIPTION
    has_own = bool(settings.path) and saved.is_file()  # its normaliser is used, and not that of the settings
    flag = f"in {saved}, the normaliser" if has_own else "--data.tokenizer.normaliser"
    return {
        name: about_round_trip(each, name, flag=flag, has_rates=name == "validation")
        for name, each in round_trips.items()
        if each.texts
    }


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
    made_of = f"{data.tokenizer}{digest_of_code(TEXT_SOURCES)}".encode() + utterances.rows.tobytes()
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
