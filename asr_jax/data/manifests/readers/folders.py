"""Folders of audio, searched through, with what is said in files beside it.

`a.wav` has its text in `a.txt`, `a.lab` or `a.transcript`, and token ids in `a.tokens` or `a.tok`. A number of frames
in `a.rows` or `a.frames` is passed over: the header tells the duration, and exactly.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader
from asr_jax.data.manifests.readers.fields import Unusable
from asr_jax.data.manifests.records import Record, Refused
from asr_jax.data.manifests.unpacking import Unpacked

AUDIO_ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".sph")
TEXT_ENDINGS = (".txt", ".lab", ".transcript")
TOKEN_ENDINGS = (".tokens", ".tok")
SIDECARS = TEXT_ENDINGS + TOKEN_ENDINGS
_walked: ContextVar[dict[str, list[str]] | None] = ContextVar("walked", default=None)


def is_audio(path: str) -> bool:
    return os.path.isdir(path) or path.lower().endswith(AUDIO_ENDINGS)


def files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path, *(name for name in _beside(path, SIDECARS) if os.path.exists(name))]
    return [name for name in walk(path) if name.lower().endswith(AUDIO_ENDINGS + SIDECARS)]


def read_folder(path: str, unpacked: Unpacked) -> Entries:
    there = set(files(path))
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in sorted(there):
        if name.lower().endswith(AUDIO_ENDINGS):
            try:
                yield _record(name, os.path.relpath(name, folder), there)
            except Unusable as error:
                yield Refused(os.path.relpath(name, folder), name, str(error))


FOLDER = Reader("folder of audio", is_audio, files, read_folder)


@contextmanager
def walking_once() -> Iterator[None]:
    """Within the block a folder is walked once: which sets it has, what is read and what may change ask for the same
    files, and of a million they take seconds each time."""
    walked = _walked.get()
    token = _walked.set({} if walked is None else walked)
    try:
        yield
    finally:
        _walked.reset(token)


def walk(folder: str) -> Iterable[str]:
    """All files under a folder, in order; links to folders are followed, each folder once, so that a loop ends."""
    walked = _walked.get()
    if walked is None:
        return _walk(folder)
    if folder not in walked:
        walked[folder] = list(_walk(folder))
    return walked[folder]


def _walk(folder: str) -> Iterator[str]:
    seen = {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        inside = []
        for name in sorted(folders):
            real = os.path.realpath(os.path.join(parent, name))
            if not name.startswith(".") and real not in seen:
                seen.add(real)
                inside.append(name)
        folders[:] = inside
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith("."))


def _record(path: str, name: str, there: set[str]) -> Record:
    text, tokens = _sidecar(path, TEXT_ENDINGS, there), _sidecar(path, TOKEN_ENDINGS, there)
    if text is None and tokens is None and not f.may_lack_text():
        raise Unusable(
            f"no text beside it: expected {f.base_name(path)} with {', '.join(TEXT_ENDINGS)} or {TOKEN_ENDINGS[0]}"
        )
    return Record(
        id=name, location=os.path.abspath(path), text=" ".join((text or "").split()), labels=f.label_ids(tokens)
    )


def _beside(audio_path: str, endings: tuple[str, ...]) -> list[str]:
    stem = os.path.splitext(audio_path)[0]
    return [stem + spelt for ending in endings for spelt in (ending, ending.upper())]


def _sidecar(audio_path: str, endings: tuple[str, ...], there: set[str]) -> str | None:
    path = next((name for name in _beside(audio_path, endings) if name in there), None)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unusable(f"{path}: {f.not_utf8(content, error)}") from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
