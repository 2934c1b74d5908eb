"""What a run reads: its settings, and the index and plan made from them."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import Buckets, Scale, make_buckets, slowest
from asr_jax.data.batching.filters import Filters, Rejections
from asr_jax.data.batching.index import FramesNeeded, Index, OutputLength, build_index, scale_of
from asr_jax.data.batching.mixing import Mixing, epoch_shares
from asr_jax.data.manifests.inputs import Role, has_validation, resolve
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Input, Utterances, read_inputs
from asr_jax.data.manifests.splits import split
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings

# A word of unknown letters is two labels, its boundary and one unknown piece: a text of them alone has half.
MAX_UNKNOWN_SHARE = 0.25
logger = logging.getLogger(__name__)


SPEEDS = (0.1, 10.0)
"""The slowest and the fastest that audio is played at."""


@dataclass(frozen=True)
class Data:
    """Manifests, tokenizer, filters and batches of a run."""

    train: tuple[str, ...]
    """Training set: files, folders and patterns. JSONL, JSON, TSV, CSV, Parquet, Arrow, tar shards, fairseq lists,
    Kaldi data folders, folders of audio with texts beside it."""
    validation: tuple[str, ...] = ()
    """Validation set, likewise; the best checkpoint is chosen on it. None: the one in the folder of train, where it has
    one, else a share of the training set."""
    validation_share: float = 0.1
    """Of the training set's hours, where no validation set is given; by speaker where they are known."""
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    """From text to labels; made from the training set's texts at the start of a run."""
    filters: Filters = field(default_factory=Filters)
    """Which training utterances are used."""
    max_train_samples: int = 0
    """Only so many training utterances, spread evenly over all; 0: all."""
    max_validation_samples: int = 0
    """Only so many validation utterances, likewise; 0: all."""
    trim_db: float = 0.0
    """Silence at both ends of every training utterance, quieter than its loudest part by so many dB, is left out; 0: not.
    60 is QuartzNet's."""
    mixing: Mixing = field(default_factory=Mixing)
    """How much of each entry of train an epoch has."""
    buckets: Buckets = field(default_factory=Buckets)
    """Shapes and sizes of the batches."""
    speeds: tuple[float, ...] = (1.0,)
    """An epoch holds every utterance once at each of these speeds; 1.1 is faster and shorter (DALI's rates mean the
    opposite: data.speeds.of_dali converts them)."""
    speed_jitter: float = 0.0
    """Each speed is moved by up to this, drawn anew for each utterance and epoch: speeds 0.9 1.0 1.1 with 0.05 are all
    speeds from 0.85 to 1.15 alike, and so is 1.0 with 0.15, in a third of the updates and with more padding."""
    cache: str = ""
    """Folder where what was read of manifests and headers is kept; empty: the user's cache folder."""
    workers: int = 0
    """Processes that read audio; 0 reads in threads of the training process."""
    threads: int = 2
    """Reading threads of each process."""

    def __post_init__(self) -> None:
        slowest, fastest = SPEEDS
        if not self.speeds or not all(slowest <= speed <= fastest for speed in self.speeds):
            raise ValueError(f"speeds {self.speeds}: expected at least one, each from {slowest:g} to {fastest:g}")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"speeds {self.speeds}: expected each once")
        if not 0 <= self.speed_jitter <= min(self.speeds) - slowest:
            raise ValueError(
                f"speed_jitter {self.speed_jitter}: expected at least 0, and speeds that stay above {slowest:g}"
            )
        if self.workers < 0 or self.threads < 1:
            raise ValueError(f"workers {self.workers}, threads {self.threads}: expected workers ≥ 0 and threads ≥ 1")
        if not 0 < self.validation_share <= 0.5:
            raise ValueError(f"validation_share {self.validation_share}: expected more than 0, at most 0.5")
        for name in ("max_train_samples", "max_validation_samples", "trim_db"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 or more")
        if self.mixing.weights and len(self.mixing.weights) != len(self.train):
            raise ValueError(
                f"mixing.weights has {len(self.mixing.weights)} numbers for {len(self.train)} entries of train: "
                "expected one each"
            )


@dataclass(frozen=True)
class PlannedData:
    """Utterances by row, the batches they make, and what was left out."""

    index: Index
    plan: BatchPlan
    rejections: Rejections

    @property
    def windowed_rows(self) -> range:
        """Rows of the index that are in no batch, the last ones: audio so long that it is for windows."""
        return range(self.plan.num_utterances, len(self.index))

    def fingerprint(self) -> str:
        """Equal where every batch at every position holds the same utterances with the same labels."""
        return f"{self.index.fingerprint()}-{self.plan.fingerprint()}"


@dataclass(frozen=True)
class Sets:
    """The utterances to train and to validate on."""

    train: Utterances
    validation: Utterances
    is_split: bool
    """Whether the second was cut from the first."""


def read_sets(data: Data, *, seed: int) -> Sets:
    """Raises: UserError that gives the three ways on where there is nothing to train on."""
    options = _options(data)
    validation_of = _validation_of(data, options)
    inputs, validation_inputs = _resolved(data.train, validation_of, options)
    train, validation = _read_training(data, inputs, seed, options, is_split=not validation_of)
    if validation is None:
        validation = _read(data, validation_inputs, options)
    validation = _some(validation, data.max_validation_samples)
    return Sets(train, validation, is_split=not validation_of)


def read_training(data: Data, *, seed: int) -> Utterances:
    """The training set of `read_sets` alone: the validation set may be missing yet.

    Raises: UserError, as `read_sets`.
    """
    options = _options(data)
    inputs, _ = _resolved(data.train, (), options)
    return _read_training(data, inputs, seed, options, is_split=not _validation_of(data, options))[0]


def _options(data: Data) -> ReadOptions:
    return ReadOptions(texts_may_lack=data.tokenizer.kind == "none")


def _read_training(
    data: Data, inputs: Sequence[Input], seed: int, options: ReadOptions, *, is_split: bool
) -> tuple[Utterances, Utterances | None]:
    """The training set, and the validation set where it is cut from that."""
    train, cut = _read(data, inputs, options, trim_db=data.trim_db), None
    if is_split:
        train, cut = split(train, share=data.validation_share, seed=seed)
    return _some(train, data.max_train_samples), cut


def _read(data: Data, inputs: Sequence[Input], options: ReadOptions, *, trim_db: float = 0.0) -> Utterances:
    return read_inputs(inputs, trim_db=trim_db, cache=data.cache, options=options)


def _validation_of(data: Data, options: ReadOptions) -> tuple[str, ...]:
    return data.validation or tuple(path for path in data.train if has_validation(path, options))


def _resolved(train: Sequence[str], validation: Sequence[str], options: ReadOptions) -> tuple[list[Input], list[Input]]:
    """What to read for both sets.

    Raises: UserError that names all paths that cannot be read at once.
    """
    found: dict[Role, list[Input]] = {"train": [], "validation": []}
    problems = [] if train else ["data.train is empty: expected at least one manifest or folder"]
    sets: tuple[tuple[Role, Sequence[str]], ...] = (("train", train), ("validation", validation))
    for role, paths in sets:
        for number, path in enumerate(paths):
            try:
                found[role] += [(number, file, reader) for _, file, reader in resolve([path], role, options)]
            except UserError as error:
                problems.append(f"data.{role}: {error}")
    if problems:
        raise UserError("\n".join([*problems, WAYS_ON]))
    return found["train"], found["validation"]


WAYS_ON = """Three ways on:
  prepare LibriSpeech, or spoken digits, from a local copy: scripts/prepare_librispeech.py, scripts/prepare_digits.py
  bring your own: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl, a line a recording: \
{"audio_path": "a.flac", "text": "hello", "duration": 1.5}; or any other manifest or folder (README, Data), and \
--data.validation alone for a tenth of it
  or see it work on made speech first: ./scripts/quickstart.sh"""


def plan_training(
    utterances: Utterances,
    data: Data,
    *,
    tokenizer: Tokenizer,
    output_length: OutputLength,
    frames_needed: FramesNeeded,
    front_end: FrontEnd,
    seed: int,
    num_devices: int,
    sub_batches: int = 1,
) -> PlannedData:
    """Index and plan of the training set: shuffled, at every speed, without what the filters drop.

    `output_length`, `sub_batches`: of a `models.base.Recogniser`; `frames_needed`: of the settings of a head.
    """
    scale = scale_of_utterances(utterances, front_end)
    frames = functools.partial(output_length, of_features=scale.of_features)
    if scale.of_features and data.trim_db:
        raise UserError(f"data.trim_db {data.trim_db:g}: ready features have no silence to trim; expected 0")
    if scale.of_features and (data.speeds != (1.0,) or data.speed_jitter):
        raise UserError(
            f"data.speeds {data.speeds}, data.speed_jitter {data.speed_jitter:g}: ready features cannot be played "
            "faster; expected --data.speeds 1.0 --data.speed-jitter 0"
        )
    index, rejections = build_index(
        utterances, scale=scale, tokenizer=tokenizer if tokenizer.has_labels else None,
        given_labels=data.tokenizer.takes_ids, output_length=frames, frames_needed=frames_needed,
        filters=data.filters,
        max_speed=max(data.speeds) + data.speed_jitter,
    )  # fmt: skip
    if not len(index):
        raise UserError(
            f"no training utterance is left: {'; '.join(rejections.lines())}. The limits are those of --data.filters: "
            f"durations from {data.filters.min_duration_s:g} to {data.filters.max_duration_s:g} s, "
            f"{data.filters.min_chars_per_s:g} to {data.filters.max_chars_per_s:g} characters a second"
        )
    _check_unknown(index, tokenizer)
    num_labels = index.num_labels()
    sources, shares = _mixed(index, data)
    buckets = make_buckets(
        index.lengths, num_labels, data.buckets, scale=scale, speeds=slowest(data.speeds, data.speed_jitter),
        num_devices=num_devices, sub_batches=sub_batches,
        shares=None if sources is None or shares is None else shares[sources],
    )  # fmt: skip
    plan = BatchPlan(
        index.lengths, num_labels, buckets, seed=seed, speeds=data.speeds, jitter=data.speed_jitter,
        order=data.buckets.order, sort_buffer=data.buckets.sort_buffer, source_of=sources, shares=shares,
    )  # fmt: skip
    return PlannedData(index, plan, rejections)


def _some(utterances: Utterances, number: int) -> Utterances:
    """So many of the utterances, evenly spread; 0: all."""
    if not number or number >= len(utterances):
        return utterances
    return utterances.select(np.arange(number) * len(utterances) // number)


def _check_unknown(index: Index, tokenizer: Tokenizer) -> None:
    """Warns of labels that stand for nothing. Raises: UserError where they are more than a quarter of all."""
    if tokenizer.unknown_id is None or not len(rows := index.rows_with(index.labels.values == tokenizer.unknown_id)):
        return
    share = len(rows) / int(index.num_labels().sum())
    utterance = index.utterances.columns.utterance(int(rows[0]))
    message = (
        f"{share:.1%} of all labels are the tokenizer's unknown piece; the first is of utterance {utterance.id}: "
        f"{utterance.text!r}. Does the normaliser ({tokenizer.normaliser}) fit the tokenizer?"
    )
    if share > MAX_UNKNOWN_SHARE:
        raise UserError(message)
    logger.warning(message)


def scale_of_utterances(utterances: Utterances, front_end: FrontEnd) -> Scale:
    """By the first utterance: what the others are is checked against it."""
    of_features = bool(len(utterances) and utterances.columns.num_frames[utterances.rows[0]])
    return scale_of(front_end, of_features=of_features)


def _mixed(index: Index, data: Data) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The source of each utterance, and the share of each source in an epoch; None where nothing is mixed."""
    if data.mixing.kind == "none":
        return None, None
    sources = index.utterances.columns.input_of[index.utterances.rows]
    number = np.bincount(sources, minlength=len(data.train))
    hours = np.bincount(sources, weights=index.lengths, minlength=len(data.train))
    return sources, epoch_shares(data.mixing, number, hours)


def check_labels(data: PlannedData, tokenizer: Tokenizer) -> None:
    """Raises: UserError that names the first utterance whose labels hold the blank, or none of the vocabulary's: a loss
    that is computed on a device cannot say so.
    """
    labels = data.index.labels
    wrong = (labels.values == tokenizer.blank_id) | (labels.values >= tokenizer.vocab_size)
    if len(rows := data.index.rows_with(wrong)):
        utterance, of_row = data.index.utterances.columns.utterance(int(rows[0])), labels[int(rows[0])]
        label = int(of_row[(of_row == tokenizer.blank_id) | (of_row >= tokenizer.vocab_size)][0])
        raise UserError(
            f"utterance {utterance.id}: label {label} of {utterance.text or utterance.labels!r} is the blank "
            f"({tokenizer.blank_id}) or outside of the vocabulary of {tokenizer.vocab_size}; the tokenizer does "
            "not fit: make it anew, or set data.tokenizer.blank_id"
        )
