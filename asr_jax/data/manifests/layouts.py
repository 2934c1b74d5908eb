"""Training, validation and test sets in a folder of any layout, also in folders of several corpora."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.inputs import KINDS, NOT_DATA, OF_LHOTSE, STEMS, TABLES, Role, local_input, resolve
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, FOLDER, SIDECARS, TEXT_ENDINGS, is_about
from asr_jax.data.manifests.readers.kaldi import KALDI
from asr_jax.text.inspection import Finding

ROLES: tuple[Role, ...] = get_args(Role)
DEPTH = 3
"""Number of levels of folders that are searched for corpora."""
UNUSED = ("other", "invalidated", "reported", "validated_sentences", "unvalidated_sentences", "clip_durations", "times")
"""Tables of Common Voice that are not sets."""
Files = dict[Role, list[str]]


def find_sets(path: str) -> Files:
    """Finds the files or folders of each set, as `resolve` does for a role, also in subfolders.

    A set that is in the place of another one, as in a folder without sets, counts once. If no set is for training, all
    are.

    Raises:
        UserError: If there is nothing to read, or audio without texts.
    """
    path = local_input(path)
    options = ReadOptions()
    found, reason = _found(path, options, DEPTH)
    if not any(found.values()):
        names = [name.lower() for name in options.walk(path)]
        audio, texts = ([name for name in names if name.endswith(each)] for each in (AUDIO_ENDINGS, TEXT_ENDINGS))
        if audio:
            raise UserError(f"{path} has {counted(len(audio), 'audio file')}, but no texts.{WITHOUT_TEXTS}")
        if any(not is_about(name) for name in texts):
            raise UserError(
                f"{path} has {counted(len(texts), 'text file')}, but no audio ({', '.join(AUDIO_ENDINGS)}): expected "
                "both in one folder, as a.wav and a.txt; or give the manifest that has the paths of the audio"
            )
        raise reason or UserError(f"{path} has nothing to read")
    if not found["train"]:
        return {"train": [name for role in ROLES for name in found[role]], "validation": [], "test": []}
    return found


def left_out(path: str, files: Files) -> Iterator[Finding]:
    """Yields findings on data that `find_sets` does not read, and on folders with names of sets that are no sets."""
    read = {Path(name) for of_role in files.values() for name in of_role}
    beside = {other for file in read if file.suffix == ".jsonl" for other in file.parent.glob("*.jsonl")} - read
    others = [
        str(file) for file in sorted(beside) if not NOT_DATA.fullmatch(file.name) and not OF_LHOTSE.match(file.name)
    ]
    if others:
        message = "manifests of no set; they are not read: to use them, give one manifest that has all utterances"
        yield Finding("other_manifests", len(others), message, tuple(others[:3]), is_wrong=False)
    if all(folder.is_dir() and not KALDI.matches(str(folder)) for folder in read):
        audio = [Path(name) for name in ReadOptions().walk(path) if name.lower().endswith(AUDIO_ENDINGS)]
        if ignored := [str(name) for name in audio if not read & {*name.parents}]:
            message = "audio files in no set; they are not read: move them into the folder of a set"
            yield Finding("ignored_audio", len(ignored), message, tuple(ignored[:3]))
        inner = {folder for name in audio for folder in name.parents if read & {*folder.parents}}
        if sets := [str(folder) for folder in sorted(inner) if role_of(folder.name) in ("validation", "test")]:
            message = (
                "folders named as a set within the folder of another set; they are read as part of it: move them out"
            )
            yield Finding("inner_sets", len(sets), message, tuple(sets[:3]))


WITHOUT_TEXTS = """ Expected a text for each file: a.txt beside a.wav, a table, or a manifest (documentation: data). \
Audio alone can be used in two ways:
  transcribe it with a published model and train on these texts: python -m asr_jax.transcribe RUN DIR --to-manifest \
OUT.jsonl (documentation: transcription)
  pre-train on it: configs/wav2vec2_pretrain.py (documentation: pre-training)"""


def _found(path: str, options: ReadOptions, depth: int) -> tuple[Files, UserError | None]:
    """Sets in a path; and the reason why none is there."""
    found: Files = {role: [] for role in ROLES}
    try:
        inputs = resolve([path], "train", options)
    except UserError as error:
        return (_inside(path, options, depth) if os.path.isdir(path) and depth else found), error
    if all(reader is FOLDER and os.path.isdir(file) for _, file, reader in inputs):
        has_texts = any(_has_texts(file, options) for _, file, _ in inputs)
        inside = _inside(path, options, depth) if depth and (not has_texts or _has_sets(path, options)) else found
        if not has_texts or any(inside.values()):
            return inside, None
    found["train"] = [file for _, file, _ in inputs]
    for role in ("test", "validation"):  # AN4 has one set for both, which is the test set
        try:
            files = [file for _, file, _ in resolve([path], role, options)]
        except UserError:
            continue
        if not {*files} & {name for of in found.values() for name in of}:
            found[role] = files
    return found, None


def _inside(path: str, options: ReadOptions, depth: int) -> Files:
    """Sets in the folders and tables of a folder. The name of each tells its set, or that it has several."""
    merged: Files = {role: [] for role in ROLES}
    endings = (*(ending for kind in KINDS for ending in kind), *TABLES)
    for entry in sorted(Path(path).iterdir()):
        is_table = entry.name.lower().endswith(endings) and not NOT_DATA.fullmatch(entry.name)
        if entry.name.startswith(".") or not (entry.is_dir() or (is_table and entry.stem not in UNUSED)):
            continue
        if entry.is_dir() and all(name.lower().endswith(AUDIO_ENDINGS) for name in options.walk(str(entry))):
            continue  # the audio of a table beside it
        found, _ = _found(str(entry), options, depth - 1)
        for role, files in found.items():
            merged[role_of(entry.name) or role] += files
    return merged


def role_of(name: str) -> Role | None:
    """Set that a name begins or ends with, such as `dev-clean` and `train_dev`. None: it names none."""
    parts = name.lower().partition(".")[0].replace("-", "_").split("_")
    for part in (parts[-1], parts[0]):
        for role, stems in STEMS.items():
            if part in stems:
                return role
    return None


def _has_sets(folder: str, options: ReadOptions) -> bool:
    """Whether folders in a folder have the names of sets, and no audio is beside them."""
    audio = [Path(name) for name in options.walk(folder) if name.lower().endswith(AUDIO_ENDINGS)]
    inner = [name.relative_to(folder).parts[:-1] for name in audio]
    return all(inner) and any(role_of(part) for parts in inner for part in parts)


def _has_texts(folder: str, options: ReadOptions) -> bool:
    """Whether a text is beside an audio file in a folder of audio."""
    names = [os.path.splitext(name) for name in options.walk(folder)]
    audio = {stem for stem, ending in names if ending.lower() in AUDIO_ENDINGS}
    return any(ending.lower() in SIDECARS and stem in audio for stem, ending in names)
