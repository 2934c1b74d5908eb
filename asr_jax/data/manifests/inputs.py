"""Resolves files, folders and glob patterns that a user gives to the paths to read and their readers."""

import os
import re
from collections.abc import Sequence
from itertools import chain
from typing import Literal

from asr_jax.audio.io import NOT_A_FILE, is_stream
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.paths import divided, is_utf8, matches
from asr_jax.data.manifests.locations import local_path
from asr_jax.data.manifests.readers.array_records import ARRAY_RECORD, ENDING_OF_SHARD, OF_TENSORFLOW_DATASETS
from asr_jax.data.manifests.readers.base import Input, Reader, ReadOptions, beside, warn_once
from asr_jax.data.manifests.readers.corpora import AN4, LIBRISPEECH, an4_set, subsets
from asr_jax.data.manifests.readers.fairseq import FAIRSEQ
from asr_jax.data.manifests.readers.fields import EXAMPLE
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, FOLDER
from asr_jax.data.manifests.readers.json_lines import JSON, JSON_ONCE, looks_like_manifest
from asr_jax.data.manifests.readers.kaldi import KALDI
from asr_jax.data.manifests.readers.lhotse import is_of_shar
from asr_jax.data.manifests.readers.tables import ARROW, PARQUET
from asr_jax.data.manifests.readers.text_tables import TEXT_TABLE
from asr_jax.data.manifests.readers.webdataset import TAR
from asr_jax.data.manifests.remote import fetched, is_url, matching
from asr_jax.metrics.measure import ALL, MEAN

Role = Literal["train", "validation", "test"]
READERS = (KALDI, JSON, FAIRSEQ, TEXT_TABLE, PARQUET, ARROW, ARRAY_RECORD, TAR, AN4, LIBRISPEECH, FOLDER)
"""Readers in order of precedence: the first one that matches a path reads it."""

STEMS: dict[Role, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of sets, in capital or small letters; the first existing one is read."""
MANIFESTS = (".jsonl", ".json", ".jsonl.gz", ".tsv", ".csv", ".parquet")
# Files of the first kind that a folder contains are its data. A folder without any of them is a folder of audio.
KINDS = ((".jsonl", ".jsonl.gz", ".json"), (".parquet",), (".arrow",), (".array_record",), (".tar",))
TABLES = (".csv", ".tsv")
# Tables of Hugging Face's audiofolder and of LJSpeech, beside the audio.
METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
NEMO_TARRED = "tarred_audio_manifest.json"
NEMO_TAR = re.compile(r"audio_\d+\.tar")
BRACES = re.compile(r"(?:_OP_|\{)(\d+)\.\.(\d+)(?:_CL_|\})")
"""Range of numbers in a path, as in NeMo's `audio__OP_0..511_CL_.tar`."""
RECORDINGS, SUPERVISIONS, CUTS = "recordings", "supervisions", "cuts"
"""Parts of the names of lhotse's manifests."""
# Files of Hugging Face's `datasets`, of our runs, of folders of transcripts, of rejected utterances, and events.
NOT_DATA = re.compile(
    r"(dataset_info|dataset_infos|dataset_dict|state|experiment)\.json|(cache-|tmp).*\.arrow|"
    r"(.*\.)?(rejected|skipped|rejects|made_by|made_of|events)(-\d+-of-\d+)?\.jsonl"
)
# Examples: `train-00000-of-00004.parquet`, `NAME-validation.arrow`, `shards_test_0001.tar`.
_SET = "|".join(sorted(chain.from_iterable(STEMS.values()), key=len, reverse=True))
OF_A_SET = re.compile(rf"(?:.*[-_])?({_SET})(?:[-_.]?\d+(?:-of-\d+)?)?(?:\.[a-z.]+)?")
# Examples: `train-clean-100.jsonl`, `dev_other-000001.tar`. The name of the set is followed by the number of the file.
OF_A_NAMED_SET = re.compile(rf"((?:{_SET})[-_].+?)(?:[-_.](?:0\d*|\d{{4,}}|\d+-of-\d+))?(?:\.[a-z.]+)?")
# Ending of a manifest's or an archive's name, which is no part of the name of its set.
ENDING = re.compile(
    rf"(\.jsonl\.gz|\.(jsonl|json|list|tsv|csv|parquet|arrow|tar))$|{ENDING_OF_SHARD.pattern}", re.IGNORECASE
)
OF_LHOTSE = re.compile(rf"^(?:.*[-_])?(?:{RECORDINGS}|{SUPERVISIONS}|{CUTS})[-_]")
LISTED = 20


def resolve(paths: Sequence[str], role: Role = "train", options: ReadOptions | None = None) -> list[Input]:
    """Resolves files, folders and glob patterns (`shards/*.tar`) to the paths to read, in order.

    A folder may have several sets: manifests or folders named `train` (.jsonl, .json, .tsv …), also in a subfolder
    `manifests` or `data`, or files with names, or folder names, that end in the name of a set. `role` selects one of
    them. A folder of several sets without one that is named just `train` is an error. A folder with file names that
    name no sets is read whole.

    Args:
        role: Set to read: the first name of the role's `STEMS` that exists.

    Returns:
        An input for each path to read, with its index into `paths`.

    Raises:
        UserError: If a path does not exist, has nothing for the role, has sets that the role does not distinguish, or
            has no supported format.
    """
    options = options or ReadOptions()
    return [
        (number, file, _reader(file, role))
        for number, path in enumerate(paths)
        for file in _expanded(path, role, options)
    ]


def described(paths: Sequence[str], role: Role = "train", options: ReadOptions | None = None) -> list[str]:
    """Describes the inputs of `resolve`, one line each: the path that is read, if it is another one, and its format."""
    found: dict[str, list[tuple[str, str]]] = {}
    for number, file, reader in resolve(paths, role, options):
        name = JSON.name if reader is JSON_ONCE else reader.name  # speeds are those of QuartzNet's manifests only
        found.setdefault(paths[number], []).append((file, reader.details(file) or name))
    return [
        f"{path}: read as {', '.join(sorted({name for _, name in of_path}))}"
        + ("" if of_path[0][0] == path else f" from {of_path[0][0]}" + (f" … ({len(of_path)})" * (len(of_path) > 1)))
        for path, of_path in found.items()
    ]


def set_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Names the sets that are read from inputs.

    The name is that of the file or folder, without the ending of a manifest. Folders that it is in precede it, as in
    `corpus/dev`, if names would be equal otherwise. A path that is given again has the suffix `#2`, `#3` ….
    """
    whole = [ENDING.sub("", os.path.abspath(local_input(path))).lstrip(os.sep).split(os.sep) for path in paths]
    names = [ALL, MEAN]  # the words for several sets
    for parts in whole:
        taken = [[ALL], [MEAN], *(other for other in whole if other != parts)]
        number = 1
        while number < len(parts) and any(other[-number:] == parts[-number:] for other in taken):
            number += 1
        name, copies = "/".join(parts[-number:]), 1
        while name in names:
            copies += 1
            name = f"{'/'.join(parts[-number:])}#{copies}"
        names.append(name)
    return tuple(names[2:])


def has_validation(folder: str, options: ReadOptions | None = None) -> bool:
    """Whether the folder has several sets, including one for validation. False if `resolve` raises an error."""
    options = options or ReadOptions()
    try:
        folder = local_input(folder)
        if not os.path.isdir(folder) or KALDI.matches(folder):
            return False
        if corpus := _of_corpus(folder, "validation"):
            return corpus != _of_corpus(folder, "train")
        return bool(_set_of(folder, "validation", _data_files(folder, options)[0], options))
    except UserError:
        return False


def local_input(path: str) -> str:
    """Resolves `~` and file:// in the path of an input.

    Raises:
        UserError: If it is a URL of another scheme.
    """
    try:
        return local_path(path)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _expanded(path: str, role: Role, options: ReadOptions) -> list[str]:
    path = local_input(path)
    if not is_utf8(os.path.abspath(path)):
        raise UserError(f"{os.path.abspath(path)!a} is not UTF-8: rename the file or the folder")
    _refuse_streams([path])
    if is_url(path):
        return [file for url in matching(path) for file in _expanded(fetched(url), role, options)]
    if not os.path.exists(path):
        start, rest = divided(path)
        if BRACES.search(rest):
            names = (os.path.join(start, name) for name in _numbered(rest))
            return [file for name in names for file in _expanded(name, role, options)]
        if found := [name for name in matches(path) if name != path]:  # a dangling link finds itself
            return list(dict.fromkeys(file for name in found for file in _expanded(name, role, options)))
        raise UserError(f"{path}: no such file or folder; check the path (relative paths start at {os.getcwd()})")
    if not os.path.isdir(path):
        return _of_file(path, role, options)
    if KALDI.matches(path):
        return [path]
    if corpus := _of_corpus(path, role):
        return corpus
    files, others = _data_files(path, options)
    chosen = _set_of(path, role, files, options)
    if chosen is not None:
        if not chosen:
            raise UserError(
                f"{path} has a training set, but none named {', '.join(STEMS[role])}; give the path of the manifest or "
                "folder to read"
            )
        return [file for name in chosen for file in (_expanded(name, role, options) if os.path.isdir(name) else [name])]
    if files and others:
        warn_once(
            f"{path}: {_such_as(files)} {'is' if len(files) == 1 else 'are'} read, and {_such_as(others)} "
            f"{'is' if len(others) == 1 else 'are'} ignored: give the paths of the files to read"
        )
    has_audio = any(name.lower().endswith(AUDIO_ENDINGS) for name in options.walk(path))
    for name in files:
        if has_audio and name.lower().endswith(".json") and not looks_like_manifest(name):
            raise UserError(
                f"{name} is in a folder of audio, but is not a manifest (expected lines such as {EXAMPLE}): remove it "
                "from the folder, or give the paths of the files to read"
            )
    if files or has_audio:
        return files or [path]
    if others:
        raise UserError(f"{path} has tables, but none is named just train: {_listed(path, others)}")
    raise UserError(
        f"{path} has nothing to read: expected manifests ({', '.join(MANIFESTS)}), Parquet, Arrow, ArrayRecord or tar "
        f"files, Kaldi's wav.scp, or audio ({', '.join(AUDIO_ENDINGS)})"
    )


def _numbered(path: str) -> list[str]:
    """Paths of a pattern such as `audio__OP_0..511_CL_.tar` or `audio_{0..511}.tar`."""
    found = BRACES.search(path)
    if not found:
        return [path]
    first, last = map(int, found.groups())
    numbers = (str(number).zfill(len(found[1]) if found[1].startswith("0") else 0) for number in range(first, last + 1))
    return [name for number in numbers for name in _numbered(path[: found.start()] + number + path[found.end() :])]


def _of_file(path: str, role: Role, options: ReadOptions) -> list[str]:
    """Returns the files to read for a file: the tars of a list of tars, and recordings for lhotse's supervisions."""
    folder, name = os.path.split(path)
    if NEMO_TAR.fullmatch(name) and os.path.exists(manifest := os.path.join(folder, NEMO_TARRED)):
        raise UserError(
            f"{path} is a tar of NeMo, whose texts are in the manifest: give {manifest} instead of the tars"
        )
    if SUPERVISIONS in name and JSON.matches(path):
        recordings = os.path.join(folder, name.replace(SUPERVISIONS, RECORDINGS))
        if not os.path.exists(recordings):
            raise UserError(f"{path} has supervisions of lhotse: expected the recordings in {recordings}; or pass cuts")
        return [recordings]
    if name.lower().endswith(".list") and not JSON.matches(path):
        with open(path, "rb") as file:
            names = [name for line in file if (name := line.decode(errors="replace").strip())]
        if names and all(map(TAR.matches, names)):
            places = [[os.path.join(root, each) for root in beside(path)] for each in names]
            found = [next(filter(os.path.exists, each), each[0]) for each in places]
            return [file for name in found for file in _expanded(name, role, options)]
    return [path]


def _of_lhotse(files: list[str]) -> list[str]:
    """Files without the supervisions, which are read with the recordings, and without both if there are cuts."""
    split = [os.path.split(file) for file in files]
    recordings = [(folder, name) for folder, name in split if RECORDINGS in name]
    others = {os.path.join(folder, name.replace(RECORDINGS, SUPERVISIONS)) for folder, name in recordings} & set(files)
    if not others:
        return files
    cuts = [file for file, (_, name) in zip(files, split, strict=True) if CUTS in name]
    if cuts:
        warn_once(f"{cuts[0]}: only the cuts are read, and not the recordings and supervisions beside them")
    return cuts or [file for file in files if file not in others]


def _of_corpus(path: str, role: Role) -> list[str]:
    """Returns the files of a role in a known corpus, or in a folder with `metadata.csv`. Empty for other folders."""
    if AN4.matches(path):
        return [an4_set(path, role)]
    if os.path.isfile(manifest := os.path.join(path, NEMO_TARRED)):
        return [manifest]
    if table := next((name for name in METADATA if os.path.isfile(os.path.join(path, name))), ""):
        return [os.path.join(path, table)]
    if not LIBRISPEECH.matches(path) or not (sets := [each for each in subsets(path) if LIBRISPEECH.matches(each)]):
        return [path] * LIBRISPEECH.matches(path)
    stem = "dev" if role == "validation" else role
    chosen = [each for each in sets if os.path.basename(each).startswith(stem)]
    if not chosen:
        raise UserError(f"{path} has no subset {stem}-…: {_listed(path, sets)}")
    return chosen


def _set_of(folder: str, role: Role, files: list[str], options: ReadOptions) -> list[str] | None:
    """Manifest, folder or files of a role in a folder of several sets. None for any other folder."""
    if _named(folder, "train", options):
        return _named(folder, role, options)[:1]
    sets = [_set_name(os.path.relpath(file, folder).lower()) for file in files]
    if "" not in sets and any(stem in sets for stem in STEMS["train"]):
        stem = next((stem for stem in STEMS[role] if stem in sets), None)
        return [file for file, of in zip(files, sets, strict=True) if of == stem]
    named = {of for of in sets if of}
    if len(named) > 1 or ("" in sets and any(not of.startswith("train") for of in named)):
        raise UserError(f"{folder} has several sets, but none is named just train: {_listed(folder, files)}")
    return None


def _set_name(path: str) -> str:
    """Name of the set in the name of a file, or otherwise of one of its folders. Empty if there is none."""
    for part in reversed(path.split(os.sep)):
        part = ENDING_OF_SHARD.sub("", OF_LHOTSE.sub("", part))
        if found := OF_A_SET.fullmatch(part) or OF_A_NAMED_SET.fullmatch(part):
            return found[1]
    return ""


def _such_as(files: list[str]) -> str:
    name = os.path.basename(files[0])
    return name if len(files) == 1 else f"{counted(len(files), 'file')} such as {name}"


def _listed(folder: str, files: list[str]) -> str:
    names = [os.path.relpath(file, folder) for file in files[:LISTED]]
    more = f" and {len(files) - LISTED} more" if len(files) > LISTED else ""
    return f"{', '.join(names)}{more}; give the path of the file to read ({files[0]}), several paths, or a pattern"


def _named(folder: str, role: Role, options: ReadOptions) -> list[str]:
    has_manifests = any(name.lower().endswith(MANIFESTS) for name in os.listdir(folder))
    inside = ("", "manifests", *(["data"] * (not has_manifests)))
    paths = [path for inner in inside for path in _of_stems(os.path.join(folder, inner), STEMS[role], (*MANIFESTS, ""))]
    return [path for path in paths if os.path.isfile(path) or _is_data_folder(path, options)]


def _of_stems(folder: str, stems: Sequence[str], endings: Sequence[str] = ("",)) -> list[str]:
    """Returns the paths in a folder whose names are a stem with an ending, in capital or small letters.

    They are in the order of the stems, and then of the endings.
    """
    there = {name.lower(): name for name in sorted(os.listdir(folder))} if os.path.isdir(folder) else {}
    names = [f"{stem}{ending}" for stem in stems for ending in endings]
    return [os.path.join(folder, there[name]) for name in names if name in there]


def _is_data_folder(path: str, options: ReadOptions) -> bool:
    """Whether a folder has data. A folder of audio counts only if one for validation or test is beside it."""
    if KALDI.matches(path) or _data_files(path, options)[0] or LIBRISPEECH.matches(path):
        return True
    if any(os.path.isfile(os.path.join(path, name)) for name in METADATA):
        return True
    folder = os.path.dirname(path)
    beside = any(map(os.path.isdir, _of_stems(folder, (*STEMS["validation"], *STEMS["test"]))))
    return beside and any(name.lower().endswith(AUDIO_ENDINGS) for name in options.walk(path))


def _data_files(folder: str, options: ReadOptions) -> tuple[list[str], list[str]]:
    """Files of the first kind that the folder contains, and files of other kinds."""
    files = [name for name in options.walk(folder) if not NOT_DATA.fullmatch(os.path.basename(name))]
    plain = {name: ENDING_OF_SHARD.sub(".array_record", name.lower()) for name in files}
    if any(map(ARRAY_RECORD.matches, files)):
        files = [name for name in files if os.path.basename(name) not in OF_TENSORFLOW_DATASETS]
    kinds = [[name for name in files if plain[name].endswith(endings)] for endings in (*KINDS, TABLES)]
    chosen = next(filter(None, kinds[:-1]), [])
    _refuse_streams(chosen)
    if chosen is kinds[0]:
        return _of_lhotse(chosen), [name for kind in kinds[1:] for name in kind if not is_of_shar(name)]
    return chosen, [name for kind in kinds if kind is not chosen for name in kind]


def _refuse_streams(paths: Sequence[str]) -> None:
    if streams := list(filter(is_stream, paths)):
        raise UserError(f"{streams[0]}: {NOT_A_FILE}, because data are read several times")


def _reader(path: str, role: Role) -> Reader:
    for reader in READERS:
        if reader.matches(path):
            return JSON_ONCE if reader is JSON and role != "train" else reader
    raise UserError(
        f"{path} has no supported format: expected .jsonl .json .tsv .csv .parquet .arrow .array_record .tar, a Kaldi "
        f"data folder, or audio ({', '.join(AUDIO_ENDINGS)})"
    )
