"""Training and validation sets of a run, read from the paths of its settings."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.installation import is_checkout
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.inputs import Role, has_validation, resolve, set_names
from asr_jax.data.manifests.items import sampled, shards_of
from asr_jax.data.manifests.readers.base import Input, ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_inputs
from asr_jax.data.manifests.splits import split


@dataclass(frozen=True)
class Sets:
    """Training and validation utterances."""

    train: Utterances
    validation: Utterances
    is_split: bool
    """Whether the validation set is a part of the given training set."""
    names: tuple[str, ...] = ()
    """Names of the validation sets, by their number in `columns.input_of`. Empty for a split one, which is one set."""
    validation_paths: tuple[str, ...] = ()
    """Paths that the validation set is read from, in the order of `Columns.input_of`."""


def read_sets(data: Data, *, seed: int) -> Sets:
    """Reads the training set, or a sample of its shards, and the validation set.

    Raises:
        UserError: If a path cannot be read or there is no training data. The message lists three ways to provide data.
    """
    options = _options(data)
    validation_of = _validation_of(data, options)
    if data.order == "sharded" and not validation_of:
        raise UserError("data.order is sharded without data.validation: expected a validation set, which is read whole")
    inputs = _resolved(data, validation_of, options)
    train, validation = _read_training(data, inputs["train"], seed, options, is_split=not validation_of)
    if validation is None:
        validation = read_inputs(inputs["validation"], cache=data.cache, options=options)
    validation = spread(validation, data.max_validation_utterances)
    return Sets(train, validation, not validation_of, set_names(validation_of), validation_of or data.train)


def read_training(data: Data, *, seed: int) -> Utterances:
    """Reads only the training set of `read_sets`. The validation set does not have to exist.

    Raises:
        UserError: As `read_sets`.
    """
    options = _options(data)
    inputs = _resolved(data, (), options)["train"]
    return _read_training(data, inputs, seed, options, is_split=not _validation_of(data, options))[0]


def _options(data: Data) -> ReadOptions:
    root = "" if data.root == os.getcwd() else data.root  # the cache is the same with and without it
    return ReadOptions(texts_may_lack=data.tokenizer.kind == "none", allow_pipes=data.allow_pipes, root=root)


def _read_training(
    data: Data, inputs: Sequence[Input], seed: int, options: ReadOptions, *, is_split: bool
) -> tuple[Utterances, Utterances | None]:
    """Training set, and the validation set if it is split from the training set."""
    if data.order == "sharded":
        shards = shards_of(data.train, options)
        utterances, rejected = sampled(shards, data.sampled_items, options, data.storage)
        return replace(Utterances.of(utterances), rejected=tuple(rejected), shards=shards), None
    train, cut = read_inputs(inputs, trim_db=data.trim_db, cache=data.cache, options=options), None
    if is_split:
        train, cut = split(train, share=data.validation_share, seed=seed)
    return spread(train, data.max_train_utterances), cut


def _validation_of(data: Data, options: ReadOptions) -> tuple[str, ...]:
    return data.validation or tuple(path for path in data.train if has_validation(path, options))


def _resolved(data: Data, validation: Sequence[str], options: ReadOptions) -> dict[Role, list[Input]]:
    """Inputs of both sets; none of the training set if its shards are read one after the other."""
    found: dict[Role, list[Input]] = {"train": [], "validation": []}
    problems = [] if data.train else ["data.train is empty: expected at least one manifest or folder"]
    train = () if data.order == "sharded" else data.train
    sets: tuple[tuple[Role, Sequence[str]], ...] = (("train", train), ("validation", validation))
    for role, paths in sets:
        for number, path in enumerate(paths):
            try:
                found[role] += [(number, file, reader) for _, file, reader in resolve([path], role, options)]
            except UserError as error:
                problems.append(f"data.{role}: {error}")
    if problems:
        raise UserError("\n".join([*problems, WAYS_ON + PREPARE * is_checkout()]))
    return found


WAYS_ON = """Ways to provide data:
  use your own data: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl, with one utterance per line: \
{"audio_path": "a.flac", "text": "hello", "duration": 1.5}; or any other manifest or folder, such as LibriSpeech's \
(documentation: data); without --data.validation, a tenth of the training set is used for validation
  let python -m asr_jax.init FOLDER write a config for a folder of recordings with texts
  train on synthetic speech first: python -m asr_jax.quickstart"""
PREPARE = """
  prepare LibriSpeech or spoken digits from a local copy: scripts/prepare_librispeech.py, scripts/prepare_digits.py"""


def spread(utterances: Utterances, number: int) -> Utterances:
    """Evenly spread subset of `number` utterances. 0: all utterances."""
    if not number or number >= len(utterances):
        return utterances
    return utterances.select(np.arange(number) * len(utterances) // number)
