"""Data of a run: its settings, and the index and batch plan that are made from them."""

import functools
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, Share, above, between, settings
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.bucket_files import read_buckets
from asr_jax.data.batching.buckets import Bucket, Buckets, Entries, FitRows, Scale, make_buckets, unfit
from asr_jax.data.batching.crops import cropped
from asr_jax.data.batching.filters import LONGEST_S, Filters, Rejections
from asr_jax.data.batching.index import FramesNeeded, Index, OutputLength, build_index, scale_of
from asr_jax.data.batching.mixing import Mixing, Sources, epoch_shares
from asr_jax.data.batching.pools import Pool
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered
from asr_jax.data.manifests.storage import Storage
from asr_jax.text.sampling import SampledPieces
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings

logger = logging.getLogger(__name__)
SLOWEST = 0.1
"""Slowest playback speed."""
MORE_ITEMS = 1e6
"""Items of shards that each sampled one stands for. Rows of batches then follow from their budget alone; otherwise, a
bucket would have no more rows than the sample has items of it."""


@settings
class Data:
    """Manifests, tokenizer, filters and batches of a run."""

    train: tuple[UserPath, ...]
    """Training set: files, folders and glob patterns. Supported are JSONL, JSON, TSV, CSV, Parquet, Arrow, tar shards,
    fairseq lists, Kaldi data folders, and folders of audio with texts beside it."""
    validation: tuple[UserPath, ...] = ()
    """Validation sets, in the same formats; they select the best checkpoint (saving.best_of). Each entry is a set,
    named after its file or folder. Empty: the validation set in the folder of `train` if there is one, otherwise a
    share of the training set."""
    root: UserPath = ""
    """Folder that relative paths in manifests start from if their files are neither in the manifest's folder nor in its
    parent folder. Empty: the current folder, which a run keeps for later jobs."""
    validation_share: Annotated[float, above(0, most=0.5)] = 0.1
    """Share of the training set's hours that is used for validation if there is no validation set. Split by speaker if
    speakers are known."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Conversion from text to labels. The tokenizer is made from the training set's texts at the start of a run."""
    filters: Filters = Filters()
    """Limits that training utterances must satisfy."""
    crop_s: NonNegativeFloat = 0.0
    """Length of crops in seconds, for audio without texts. A longer utterance is divided into as many equal parts as
    crops fit into it. An epoch has one crop of each part, at a random place that depends on seed and epoch. 0:
    utterances are not cropped. fairseq's max_sample_size is in samples, and its epochs have one crop per utterance."""
    max_removed_share: Share = 0.005
    """Maximum share of a set's characters that the normaliser and the vocabulary may remove or replace by others.
    Letters, marks, digits and symbols count, punctuation does not. If the share is larger, training stops before it
    compiles."""
    max_train_utterances: NonNegativeInt = 0
    """Maximum number of training utterances, evenly spread over the training set. 0: all."""
    max_validation_utterances: NonNegativeInt = 0
    """Maximum number of validation utterances of all sets together, evenly spread over them. 0: all."""
    check_all: bool = False
    """Whether the audio of all utterances is opened before training, instead of some of each input."""
    allow_pipes: bool = False
    """Whether commands in the place of files, as `ffmpeg -i a.m4a -f wav - |` in Kaldi's wav.scp, are run to read the
    audio: without a shell, and only programs that decode audio. If not, such utterances are rejected."""
    trim_db: NonNegativeFloat = 0.0
    """Threshold for trimming silence at both ends of training utterances, in dB below their loudest part. 0: no
    trimming. 60 is QuartzNet's."""
    mixing: Mixing = Mixing()
    """Share of each entry of `train` in an epoch."""
    batching: Batching = Batching()
    """Rule that forms batches."""
    speeds: tuple[Annotated[float, between(SLOWEST, 10.0)], ...] = (1.0,)
    """Playback speeds; an epoch contains every utterance once at each of them. 1.1 is faster and shorter. DALI's rates
    have the opposite meaning: those from 0.85 to 1.15 are speeds from 1 / 1.15 to 1 / 0.85."""
    speed_jitter: NonNegativeFloat = 0.0
    """Largest random change of each speed, drawn for each utterance and epoch. Speeds 0.9 1.0 1.1 with 0.05 cover 0.85
    to 1.15 uniformly. So does 1.0 with 0.15, in a third of the updates and with more padding."""
    cache: UserPath = ""
    """Cache folder for the contents of manifests and audio headers. Empty: the user's cache folder."""
    order: Literal["planned", "sharded"] = "planned"
    """Order of the items of training. planned: from an index of all items, which is built once; batches depend on
    (seed, epoch, position) alone. sharded: tars and Parquet files are read one after the other through a window that
    is shuffled, without an index; each process reads its own shards. A batch then depends on what was read before it,
    and a checkpoint has the state from which a run continues exactly."""
    shuffle_window: PositiveInt = 2048
    """Number of items in memory that the batches of `order` sharded are drawn from, in each process."""
    sampled_items: PositiveInt = 4096
    """Number of items of `order` sharded, of up to 8 shards, that the tokenizer, the buckets and the checks of texts
    are made from. Longer items than the longest of them are rejected."""
    storage: Storage = Storage()
    """Patience with slow and failing storage."""
    workers: NonNegativeInt = 0
    """Number of processes that read audio. 0: threads of the training process read it."""
    threads: NonNegativeInt = 0
    """Number of reading threads per process. 0: one for each core, at most 8, or two if there are `workers`."""

    def problems(self) -> Iterator[str]:
        """Yields a message for each value that does not fit the others."""
        if not self.speeds or len(set(self.speeds)) < len(self.speeds):
            yield f"speeds is {self.speeds}: expected distinct speeds, at least one"
        elif self.speed_jitter > min(self.speeds) - SLOWEST:
            yield (
                f"speed_jitter is {self.speed_jitter}: expected at most {min(self.speeds) - SLOWEST:g}, because no "
                f"speed may be below {SLOWEST:g}"
            )
        if self.crop_s > self.filters.max_duration_s:
            yield f"crop_s is {self.crop_s}: expected at most filters.max_duration_s ({self.filters.max_duration_s:g})"
        if self.mixing.weights and len(self.mixing.weights) != len(self.train):
            yield (
                f"mixing.weights has {len(self.mixing.weights)} numbers for {len(self.train)} entries of train: "
                "expected one weight per entry"
            )
        if self.mixing.kind != "none" and self.batching.by_duration:
            yield (
                f"mixing.kind is {self.mixing.kind}, and batching.edges is none with seconds: expected buckets, since "
                "the number of batches of equal duration would differ between epochs"
            )
        needing = {  # an index of all items
            "crop_s": self.crop_s,
            "trim_db": self.trim_db,
            "speed_jitter": self.speed_jitter,
            "workers": self.workers,
            "max_train_utterances": self.max_train_utterances,
            "check_all": self.check_all,
            "mixing": self.mixing.kind != "none",
            "batching.edges none": self.batching.any_length,
            "batching.random_epochs": self.batching.random_epochs,
            "batching.sort_window": self.batching.sort_window,
            "batching.pessimistic_first": self.batching.pessimistic_first,
            "tokenizer.sampling": self.tokenizer.sampling,
        }
        if self.order == "sharded" and (given := [name for name, value in needing.items() if value]):
            yield f"{', '.join(given)} with order 'sharded': expected the default, or order 'planned'"


@dataclass(frozen=True)
class PlannedData:
    """Utterances by row, their batches, and the rejected utterances."""

    index: Index
    plan: BatchPlan
    rejections: Rejections
    longest_s: float = math.inf
    """Length in seconds above which audio of an evaluation set is computed in windows or pieces."""
    of_set: str = ""
    """Digest of an evaluation set, as `Index.fingerprint`, which does not depend on how its long audio is computed."""

    @property
    def shards(self) -> tuple[str, ...]:
        """Files that training reads one after the other, if the index is of a sample of them; otherwise empty."""
        return self.index.utterances.shards

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of batches of an epoch; None if it is not known, because the files have no index."""
        return None if self.shards else self.plan.batches_per_epoch

    @property
    def windowed_rows(self) -> range:
        """Last rows of the index, which are in no batch because their audio is long and is computed in windows."""
        return range(self.plan.num_utterances, len(self.index))

    def rows_of(self, number: int) -> Int[np.ndarray, " N"]:
        """Rows of the input with this number in `columns.input_of`."""
        utterances = self.index.utterances
        return np.flatnonzero(utterances.columns.input_of[utterances.rows] == number)

    def fingerprint(self) -> str:
        """Digest. Equal digests mean that every batch has the same utterances with the same labels."""
        return f"{self.index.fingerprint()}-{self.plan.fingerprint()}"


def plan_training(
    utterances: Utterances,
    data: Data,
    *,
    tokenizer: Tokenizer,
    output_length: OutputLength,
    frames_needed: FramesNeeded,
    front_end: FrontEnd,
    seed: int,
    row_parts: int = 1,
    devices: int = 1,
    fit_rows: FitRows | None = None,
) -> PlannedData:
    """Builds the index and the batch plan of the training set, without the utterances that are rejected.

    Args:
        output_length: Maps input lengths to numbers of encoder frames, as in `models.base.Recogniser`.
        frames_needed: Minimum number of frames for numbers of labels, as in the settings of a head.
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.

    Raises:
        UserError: If no utterance is left, or if settings do not apply to ready features.
    """
    scale, batching = scale_of_utterances(utterances, front_end), data.batching
    _check_kind(data, scale, tokenizer)
    index, rejections = build_index(
        utterances,
        scale=scale,
        tokenizer=tokenizer if tokenizer.has_labels else None,
        given_labels=data.tokenizer.takes_ids,
        output_length=functools.partial(output_length, of_features=scale.of_features),
        frames_needed=frames_needed,
        filters=replace(data.filters, max_duration_s=LONGEST_S) if data.crop_s else data.filters,
        max_speed=max(data.speeds) + data.speed_jitter,
    )
    if data.crop_s:
        index = cropped(index, round(data.crop_s * scale.per_s))
    entries = index.entries(speeds=data.speeds, jitter=data.speed_jitter)
    if not batching.file and (violated := unfit(entries, batching)):
        index = index.without(violated, rejections)
        entries = index.entries(speeds=data.speeds, jitter=data.speed_jitter)
    if not len(index):
        raise _nothing_left(rejections, data)
    _warn_of_rejected(len(utterances) - len(np.unique(index.utterances.rows)), len(utterances), rejections)
    sources = _mixed(index, data)
    weights = None
    if utterances.shards:
        weights = np.full(len(index), MORE_ITEMS)
    elif sources is not None and batching.devices is None:
        weights = sources.shares[sources.of_utterance]
    if batching.file:
        buckets = Buckets(read_buckets(Path(batching.file), entries, row_parts=row_parts))
    else:
        buckets = _remembered_buckets(
            None if fit_rows else index.utterances.folder,
            entries,
            batching,
            devices=devices,
            row_parts=row_parts,
            seed=seed,
            weights=weights,
            fit_rows=fit_rows,
        )
    for message in buckets.warnings:
        logger.warning("%s", message)
    plan = BatchPlan(
        entries,
        buckets,
        seed=seed,
        sort_window=batching.sort_window,
        sources=sources,
        pessimistic_first=batching.pessimistic_first,
    )
    pieces = SampledPieces.of(tokenizer, probability=data.tokenizer.sampling, seed=seed)
    return PlannedData(replace(index, sampled=pieces), plan, rejections)


def _check_kind(data: Data, scale: Scale, tokenizer: Tokenizer) -> None:
    """Raises a UserError if settings do not apply to ready features or to texts."""
    if scale.of_features and data.trim_db:
        raise UserError(f"data.trim_db {data.trim_db:g}: ready features cannot be trimmed; expected 0")
    if scale.of_features and (data.speeds != (1.0,) or data.speed_jitter):
        raise UserError(
            f"data.speeds {data.speeds}, data.speed_jitter {data.speed_jitter:g}: the speed of ready features cannot "
            "be changed; expected --data.speeds 1.0 --data.speed-jitter 0"
        )
    if data.crop_s and tokenizer.has_labels:
        raise UserError(
            f"data.crop_s {data.crop_s:g}: the text of a part of an utterance is not known; expected 0, or audio "
            "without texts (data.tokenizer.kind none)"
        )


def _warn_of_rejected(num_rejected: int, num: int, rejections: Rejections) -> None:
    """Warns if more than a tenth of the training utterances are rejected."""
    if num_rejected > max(10, num / 10):
        logger.warning(
            "%s of %s training utterances are rejected, more than a tenth: %s; raise the limits in data.filters or add "
            "edges in data.batching to train on them",
            f"{num_rejected:,}",
            f"{num:,}",
            "; ".join(rejections.lines()),
        )


def _nothing_left(rejections: Rejections, data: Data) -> UserError:
    return UserError(
        f"no training utterance is left: {'; '.join(rejections.lines())}. The limits in --data.filters are "
        f"durations from {data.filters.min_duration_s:g} to {data.filters.max_duration_s:g} s and "
        f"{data.filters.min_chars_per_s:g} to {data.filters.max_chars_per_s:g} characters per second"
    )


def _remembered_buckets(
    folder: Path | None, entries: Entries, batching: Batching, *, weights: np.ndarray | None, **job: Any
) -> Buckets:
    """Returns the buckets of `make_buckets`; a later start with the same utterances reads them from the cache."""

    def work() -> list[Any]:
        made = make_buckets(entries, batching, weights=weights, **job)
        return [list(map(asdict, made.shapes)), made.pool and asdict(made.pool), made.warnings]

    settings = (batching, entries.scale, entries.speeds, entries.jitter, job)
    arrays = (entries.lengths, entries.num_labels, *([] if weights is None else [weights]))
    shapes, pool, warnings = remembered(folder, "buckets", (settings, *arrays), work)
    return Buckets(tuple(Bucket(**each) for each in shapes), pool and Pool(**pool), tuple(warnings))


def scale_of_utterances(utterances: Utterances, front_end: FrontEnd) -> Scale:
    """Unit of lengths of a set, by its first utterance. `build_index` checks that the others have the same."""
    of_features = bool(len(utterances) and utterances.columns.num_frames[utterances.rows[0]])
    return scale_of(front_end, of_features=of_features)


def _mixed(index: Index, data: Data) -> Sources | None:
    """Source of each utterance, and share of each source in an epoch. None without mixing."""
    if data.mixing.kind == "none":
        return None
    sources = index.utterances.columns.input_of[index.utterances.rows]
    number = np.bincount(sources, minlength=len(data.train))
    hours = np.bincount(sources, weights=index.lengths, minlength=len(data.train))
    return Sources(sources, epoch_shares(data.mixing, number, hours))


def check_labels(data: PlannedData, tokenizer: Tokenizer) -> None:
    """Checks the labels on the host, because a loss that is computed on a device cannot raise errors.

    Raises:
        UserError: If a label is the blank or outside of the vocabulary. The message names the first such utterance.
    """
    labels, utterances = data.index.labels, data.index.utterances

    def work() -> list[int]:
        wrong = (labels.values == tokenizer.blank_id) | (labels.values >= tokenizer.vocab_size)
        rows = np.searchsorted(labels.offsets, np.flatnonzero(wrong), side="right") - 1
        return rows[np.isin(rows, utterances.rows)][:1].tolist()

    inputs = (data.index.labels_digest, utterances.rows, tokenizer.blank_id, tokenizer.vocab_size)
    folder = utterances.folder if data.index.labels_digest else None
    for row in remembered(folder, "wrong-labels", inputs, work):
        utterance, of_row = utterances.columns.utterance(row), labels[row]
        label = int(of_row[(of_row == tokenizer.blank_id) | (of_row >= tokenizer.vocab_size)][0])
        raise UserError(
            f"utterance {utterance.id}: label {label} of {utterance.text or utterance.labels!r} is the blank "
            f"({tokenizer.blank_id}) or outside of the vocabulary of {tokenizer.vocab_size}; the tokenizer does "
            "not match the labels: build it again, or set data.tokenizer.blank_id"
        )
