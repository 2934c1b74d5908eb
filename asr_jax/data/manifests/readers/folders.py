"""Reader of folders of audio, searched recursively, with texts in files beside the audio.

`a.wav` has its text in `a.txt`, `a.lab` or `a.transcript`, and token ids in `a.tokens` or `a.tok`. A number of frames
in `a.rows` or `a.frames` is ignored, because the header has the exact duration.
"""

import os

from asr_jax.audio.io import NOT_A_FILE, is_stream
from asr_jax.core.text_files import TextError, read_text
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.text.segmentation import on_one_line

AUDIO_ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".sph")
TEXT_ENDINGS = (".txt", ".lab", ".transcript")
TOKEN_ENDINGS = (".tokens", ".tok")
ABOUT = ("readme", "license", "licence", "copying", "changelog", "about", "version", "requirements")
SIDECARS = TEXT_ENDINGS + TOKEN_ENDINGS


def is_audio(path: str) -> bool:
    return os.path.isdir(path) or path.lower().endswith(AUDIO_ENDINGS)


def files(path: str, options: ReadOptions) -> list[str]:
    if not os.path.isdir(path):
        return [path, *(name for name in _beside(path, SIDECARS) if os.path.exists(name))]
    return [name for name in options.walk(path) if name.lower().endswith(AUDIO_ENDINGS + SIDECARS)]


def read_folder(path: str, options: ReadOptions) -> Entries:
    """Reads a folder of audio, or one audio file."""
    there = set(files(path, options))
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in sorted(there):
        if name.lower().endswith(AUDIO_ENDINGS):
            try:
                yield _utterance(name, os.path.relpath(name, folder), there, options)
            except InvalidEntry as error:
                yield Rejected(os.path.relpath(name, folder), name, str(error))
    stems = {os.path.splitext(name)[0] for name in there if name.lower().endswith(AUDIO_ENDINGS)}
    for name in sorted(there):
        if name.lower().endswith(SIDECARS) and os.path.splitext(name)[0] not in stems and not is_about(name):
            yield Rejected(os.path.relpath(name, folder), name, "a text without audio beside it")


def is_about(path: str) -> bool:
    """Whether a file describes a folder, such as README.txt, and is not the text of an utterance."""
    return os.path.splitext(os.path.basename(path))[0].lower() in ABOUT


FOLDER = Reader("folder of audio", is_audio, files, read_folder)


def _utterance(path: str, name: str, there: set[str], options: ReadOptions) -> Utterance:
    text, tokens = _sidecar(path, TEXT_ENDINGS, there), _sidecar(path, TOKEN_ENDINGS, there)
    if text is None and tokens is None and not options.texts_may_lack:
        raise InvalidEntry(
            f"no text beside the audio: expected {f.base_name(path)}{TEXT_ENDINGS[0]} (or, with the same name, "
            f"{', '.join((*TEXT_ENDINGS[1:], TOKEN_ENDINGS[0]))})"
        )
    return Utterance(
        id=name,
        location=str(Location(os.path.abspath(path))),
        text=on_one_line(text or ""),
        labels=f.label_ids(tokens),
    )


def _beside(audio_path: str, endings: tuple[str, ...]) -> list[str]:
    stem = os.path.splitext(audio_path)[0]
    return [stem + spelt for ending in endings for spelt in (ending, ending.upper())]


def _sidecar(audio_path: str, endings: tuple[str, ...], there: set[str]) -> str | None:
    path = next((name for name in _beside(audio_path, endings) if name in there), None)
    if path is None:
        return None
    try:
        if is_stream(path):
            raise InvalidEntry(f"{path}: {NOT_A_FILE}")
        return read_text(path)
    except TextError as error:
        raise InvalidEntry(f"{path}: {error}") from None
    except OSError as error:
        raise InvalidEntry(f"{path}: {error.strerror}") from None
