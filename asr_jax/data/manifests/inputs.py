"""From what a user names, files, folders and patterns, to the paths that are read, each with its reader."""

import functools
import glob
import logging
import os
import re
from collections.abc import Sequence
from typing import Literal

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers.base import Reader, ReadOptions
from asr_jax.data.manifests.readers.fairseq import FAIRSEQ
from asr_jax.data.manifests.readers.fields import EXAMPLE
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, FOLDER
from asr_jax.data.manifests.readers.json_lines import JSON, JSON_ONCE, looks_like_manifest
from asr_jax.data.manifests.readers.kaldi import KALDI
from asr_jax.data.manifests.readers.tables import ARROW, PARQUET
from asr_jax.data.manifests.readers.text_tables import TEXT_TABLE
from asr_jax.data.manifests.readers.webdataset import TAR

Role = Literal["train", "validation"]
READERS = (KALDI, JSON, FAIRSEQ, TEXT_TABLE, PARQUET, ARROW, TAR, FOLDER)
"""In this order: the first that matches reads."""

STEMS = {"train": ("train",), "validation": ("val", "validation", "valid", "dev")}
MANIFESTS = (".jsonl", ".json", ".jsonl.gz", ".tsv", ".csv", ".parquet")
# In a folder, files of the first kind that is there are its data; a folder with none of them is one of audio.
KINDS = ((".jsonl", ".jsonl.gz", ".json"), (".parquet",), (".arrow",), (".tar",))
TABLES = (".csv", ".tsv")
# Of Hugging Face's `datasets`, of our runs and of what was left out.
NOT_DATA = re.compile(
    r"(dataset_info|dataset_infos|dataset_dict|state|experiment)\.json|(cache-|tmp).*\.arrow|(.*\.)?(rejected|skipped|rejects)\.jsonl"
)
# `train-00000-of-00004.parquet`, `NAME-validation.arrow`, `shards_test_0001.tar`.
_SET = "train|validation|valid|val|dev|test|eval"
OF_A_SET = re.compile(rf"(?:.*[-_])?({_SET})(?:[-_.]?\d+(?:-of-\d+)?)?(?:\.[a-z.]+)?")
# `train-clean-100.jsonl`, `dev_other-000001.tar`: a set with a name of its own, and which of its files it is.
OF_A_NAMED_SET = re.compile(rf"((?:{_SET})[-_].+?)(?:[-_.](?:0\d*|\d{{4,}}|\d+-of-\d+))?(?:\.[a-z.]+)?")
LISTED = 20
logger = logging.getLogger(__name__)


def resolve(
    paths: Sequence[str], role: Role = "train", options: ReadOptions | None = None
) -> list[tuple[int, str, Reader]]:
    """What to read for paths of files, folders and patterns (`shards/*.tar`), in order: which of `paths` it belongs to,
    the path to read and its reader.

    A folder may have several sets: manifests or folders `train` (.jsonl, .json, .tsv …; they may lie in a folder
    `manifests` of it), or files that all have such a name at their end. `role` says which is meant: `train`, or the
    first there is of val, validation, valid and dev. A folder of several sets of which none is called just `train` is
    rejected; one whose files' names say nothing of sets is read whole.

    Raises: UserError for a path that is not there, that has nothing for the role, whose sets cannot be told apart by
    the role, or that no reader reads.
    """
    options = options or ReadOptions()
    return [
        (number, file, _reader(file, role))
        for number, path in enumerate(paths)
        for file in _expanded(path, role, options)
    ]


def has_validation(folder: str, options: ReadOptions | None = None) -> bool:
    """Whether it is a folder of several sets, with one for validation. False for one that `resolve` refuses."""
    options = options or ReadOptions()
    try:
        return (
            os.path.isdir(folder)
            and not KALDI.matches(folder)
            and bool(_set_of(folder, "validation", _data_files(folder, options)[0], options))
        )
    except UserError:
        return False


def _expanded(path: str, role: Role, options: ReadOptions) -> list[str]:
    if not os.path.exists(path):
        if found := sorted({*glob.glob(path, recursive=True)} - {path}):  # a link that leads nowhere finds itself
            return [file for name in found for file in _expanded(name, role, options)]
        raise UserError(f"{path}: no such file or folder; check the path (relative ones start at {os.getcwd()})")
    if not os.path.isdir(path) or KALDI.matches(path):
        return [path]
    files, others = _data_files(path, options)
    chosen = _set_of(path, role, files, options)
    if chosen is not None:
        if not chosen:
            raise UserError(
                f"{path} has a training set and none named {', '.join(STEMS[role])}; name the manifest or folder that "
                "is meant"
            )
        return [file for name in chosen for file in (_expanded(name, role, options) if os.path.isdir(name) else [name])]
    if files and others:
        _warn(
            f"{path}: only {len(files)} files such as {os.path.basename(files[0])} are read; passed over are "
            f"{len(others)} of another kind, such as {os.path.basename(others[0])}: name what is meant"
        )
    has_audio = any(name.lower().endswith(AUDIO_ENDINGS) for name in options.walk(path))
    for name in files:
        if has_audio and name.lower().endswith(".json") and not looks_like_manifest(name):
            raise UserError(
                f"{name} lies in a folder of audio, and is no manifest (expected lines such as {EXAMPLE}): take it out "
                "of the folder, or name what is meant"
            )
    if files or has_audio:
        return files or [path]
    if others:
        raise UserError(f"{path} has tables, and none that is called just train: {_listed(path, others)}")
    raise UserError(
        f"{path} has nothing to read: expected manifests ({', '.join(MANIFESTS)}), Parquet, Arrow or tar files, "
        f"Kaldi's wav.scp, or audio ({', '.join(AUDIO_ENDINGS)})"
    )


def _set_of(folder: str, role: Role, files: list[str], options: ReadOptions) -> list[str] | None:
    """The manifest, the folder or the files of a role in a folder of several sets; None for any other folder.

    Raises: UserError for a folder of several sets whose names do not tell which is for training.
    """
    if _named(folder, "train", options):
        return _named(folder, role, options)[:1]
    sets = [_set_name(os.path.relpath(file, folder).lower()) for file in files]
    if "train" in sets and "" not in sets:
        stem = next((stem for stem in STEMS[role] if stem in sets), None)
        return [file for file, of in zip(files, sets, strict=True) if of == stem]
    named = {of for of in sets if of}
    if len(named) > 1 or ("" in sets and any(not of.startswith("train") for of in named)):
        raise UserError(f"{folder} has several sets, and none that is called just train: {_listed(folder, files)}")
    return None


def _set_name(path: str) -> str:
    """The set that a file's name, or else a folder that it is in, says that it is of; empty where nothing does."""
    for part in reversed(path.split(os.sep)):
        if found := OF_A_SET.fullmatch(part) or OF_A_NAMED_SET.fullmatch(part):
            return found[1]
    return ""


def _listed(folder: str, files: list[str]) -> str:
    names = [os.path.relpath(file, folder) for file in files[:LISTED]]
    more = f" and {len(files) - LISTED} more" if len(files) > LISTED else ""
    return f"{', '.join(names)}{more}; name the file that is meant ({files[0]}), or several, or a pattern"


@functools.cache  # paths are resolved more than once
def _warn(message: str) -> None:
    logger.warning(message)


def _named(folder: str, role: Role, options: ReadOptions) -> list[str]:
    names = [f"{stem}{ending}" for stem in STEMS[role] for ending in (*MANIFESTS, "")]
    paths = [os.path.join(folder, inner, name) for inner in ("", "manifests") for name in names]
    return [path for path in paths if os.path.isfile(path) or (os.path.isdir(path) and _is_data_folder(path, options))]


def _is_data_folder(path: str, options: ReadOptions) -> bool:
    """Of audio, only where there is one for validation or test beside it."""
    if KALDI.matches(path) or _data_files(path, options)[0]:
        return True
    folder = os.path.dirname(path)
    beside = any(os.path.isdir(os.path.join(folder, stem)) for stem in (*STEMS["validation"], "test"))
    return beside and any(name.lower().endswith(AUDIO_ENDINGS) for name in options.walk(path))


def _data_files(folder: str, options: ReadOptions) -> tuple[list[str], list[str]]:
    """The files of the first kind that there is, and those of other kinds."""
    files = [name for name in options.walk(folder) if not NOT_DATA.fullmatch(os.path.basename(name))]
    kinds = [[name for name in files if name.lower().endswith(endings)] for endings in (*KINDS, TABLES)]
    chosen = next(filter(None, kinds[:-1]), [])
    return chosen, [name for kind in kinds if kind is not chosen for name in kind]


def _reader(path: str, role: Role) -> Reader:
    for reader in READERS:
        if reader.matches(path):
            return JSON_ONCE if reader is JSON and role == "validation" else reader
    raise UserError(
        f"{path} is in no format that is read: expected .jsonl .json .tsv .csv .parquet .arrow .tar, a Kaldi data "
        f"folder, or audio ({', '.join(AUDIO_ENDINGS)})"
    )
