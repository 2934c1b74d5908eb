"""Inputs of transcription: audio files, folders, lists, manifests and standard input."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from asr_jax.audio.io import AudioError
from asr_jax.audio.pyav import SUFFIXES
from asr_jax.core.errors import UserError
from asr_jax.core.names import unique
from asr_jax.core.paths import matches
from asr_jax.data.manifests.inputs import READERS, described, local_input
from asr_jax.data.manifests.locations import Location, local_location
from asr_jax.data.manifests.pipes import is_pipe
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, FOLDER
from asr_jax.data.manifests.readers.json_lines import is_json
from asr_jax.data.manifests.readers.kaldi import KALDI
from asr_jax.data.manifests.reading import read_once
from asr_jax.data.manifests.remote import fetched, is_url, without_query
from asr_jax.data.manifests.utterances import Rejected, Utterance

STDIN = "-"
LISTS = (".txt", ".lst", ".list")
IN_FOLDERS = tuple(dict.fromkeys((*AUDIO_ENDINGS, *SUFFIXES, ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64")))
"""Endings of the files that are taken from a folder. A file that is given as an input is opened whatever its ending."""
MAGIC = re.compile(
    rb"RIFF....WAVE|RF64|riff|fLaC|OggS|ID3|\xff[\xe0-\xff]|NIST_1A|FORM....AIF|\.snd|caff|\x1aE\xdf\xa3|....ftyp",
    re.DOTALL,
)
"""First bytes of audio files: wav, flac, ogg and opus, mp3, sph, aiff, au, caf, webm, m4a."""


def listed(
    inputs: Iterable[str], *, read_stdin: Callable[[int], bytes], folder: str, allow_pipes: bool = False
) -> list[Utterance | Rejected]:
    """Lists the recordings of all inputs in order. Only recordings of manifests have durations.

    Ids are file names, paths relative to a folder, lines of lists, and ids of manifests. Repeated ids get `#2`, `#3` ….

    An input is one of:

    - an audio file;
    - a folder, searched recursively;
    - a list (`.txt`, `.lst`, `.list`) with one path per line, relative to the list or otherwise to the current folder;
    - a manifest or folder of any format that `read_utterances` supports, with or without texts;
    - a glob pattern;
    - a command with `|` at its end, also in a list, if commands are allowed;
    - `-`, standard input: audio if it begins with the first bytes of an audio file, otherwise one path per line.

    Args:
        inputs: Inputs as given by the user.
        read_stdin: Returns up to the given number of bytes of standard input; -1: all.
        folder: Folder for audio that is contained in tables or read from standard input.
        allow_pipes: Whether commands in the place of files are run.

    Raises:
        UserError: If a manifest, a list or standard input cannot be read, or if a folder is empty.
    """
    options = ReadOptions(texts_may_lack=True, allow_pipes=allow_pipes)
    entries = [
        entry for number, given in enumerate(inputs) for entry in _of(given, read_stdin, f"{folder}/{number}", options)
    ]
    names = unique([entry.id for entry in entries])
    return [replace(entry, id=name) for entry, name in zip(entries, names, strict=True)]


def formats(inputs: Iterable[str], options: ReadOptions) -> list[str]:
    """Describes the inputs that are read as manifests or data folders, one line each."""
    local = [local_input(given) for given in inputs if given != STDIN and (not is_pipe(given) or os.path.exists(given))]
    return described([given for given in local if _is_set(given, options)], "validation", options)


def read_stdin(num_bytes: int) -> bytes:
    """Reads up to `num_bytes` bytes of standard input. -1: all.

    Raises:
        UserError: If standard input is closed or cannot be read.
    """
    try:
        if sys.stdin:
            return sys.stdin.buffer.read(num_bytes)
        reason = "it is closed"
    except OSError as error:
        reason = str(error.strerror)
    raise UserError(
        f"-: standard input cannot be read: {reason}; expected audio, or paths of audio files, one per line"
    )


def with_durations(entries: Iterable[Utterance | Rejected]) -> list[Utterance | Rejected]:
    """Adds missing durations from the audio headers. Utterances whose audio cannot be read become a Rejected."""
    return in_threads(_measured, list(entries), "durations")


def _of(
    given: str, read_stdin: Callable[[int], bytes], unpack_to: str, options: ReadOptions
) -> Iterator[Utterance | Rejected]:
    given = local_input(given)
    if is_url(given) and any(reader.matches(without_query(given)) for reader in READERS if reader is not FOLDER):
        given = fetched(given)
    if given == STDIN:
        yield from _of_stdin(read_stdin, f"{unpack_to}.audio", options)
    elif is_pipe(given) and not os.path.exists(given):
        yield from _of_line(given, (os.curdir,), unpack_to, options)
    elif _is_list(given):
        yield from _of_list(given, unpack_to, options)
    elif os.path.isdir(given):
        yield from _of_folder(given, unpack_to, options)
    elif not os.path.exists(given) and (found := matches(given)):
        for number, path in enumerate(found):
            yield from _of(path, read_stdin, f"{unpack_to}.{number}", options)
    elif _is_set(given, options):
        yield from _of_manifest(given, unpack_to, options)
    else:
        is_file = os.path.exists(given)  # of this name, whatever it has in it
        yield _audio(str(Location(given)) if is_file else given, name=os.path.basename(given))


def _is_list(path: str) -> bool:
    return path.lower().endswith(LISTS) and os.path.isfile(path) and not is_json(path)


def _is_set(path: str, options: ReadOptions) -> bool:
    """Whether a path is a manifest, or a folder that is read as a data set: Kaldi's, or one without audio."""
    if os.path.isdir(path):
        return KALDI.matches(path) or not any(name.lower().endswith(IN_FOLDERS) for name in options.walk(path))
    is_there = os.path.exists(path) and not _is_list(path)
    return is_there and any(reader.matches(path) for reader in READERS if reader is not FOLDER)


def _of_stdin(read_stdin: Callable[[int], bytes], path: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    """Utterances of standard input.

    Audio is copied to a file first, because libsndfile seeks and a pipe cannot.
    """
    start = read_stdin(16)
    if not start:
        raise UserError("standard input is empty: expected audio, or paths of audio files, one per line")
    if not MAGIC.match(start):
        with io.TextIOWrapper(io.BytesIO(start + read_stdin(-1)), errors="surrogateescape") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield from _of_line(line.rstrip("\r\n"), (os.curdir,), f"{path}.{number}", options)
        return
    with open(path, "wb") as file:
        file.write(start)
        while block := read_stdin(1 << 20):
            file.write(block)
    yield Utterance(id="stdin", location=path if start[4:8] != b"ftyp" and start[:1] != b"\x1a" else _renamed(path))


def _renamed(path: str) -> str:
    """Renames the file to an ending that is decoded by FFmpeg."""
    os.rename(path, f"{path}.m4a")
    return f"{path}.m4a"


def _of_list(path: str, unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a list: {error}; expected a path per line, in UTF-8") from None
    if not any(map(str.strip, lines)):
        raise UserError(f"{path} is empty: expected a path per line")
    for number, line in enumerate(lines):
        if line.strip():
            roots = os.path.dirname(path) or os.curdir, os.curdir
            yield from _of_line(line, roots, f"{unpack_to}.{number}", options)


def _of_line(line: str, roots: tuple[str, ...], unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    """Utterances of a line of a list: an audio file, a folder of audio or a command."""
    try:
        where = Location.parse(local_location(line, allow_pipes=options.allow_pipes))
    except ValueError as error:
        yield Rejected(line, line, str(error))
        return
    there = (os.path.join(root, where.path) for root in roots)
    path = next(filter(os.path.exists, there), where.path)
    path = path if os.path.isabs(where.path) else os.path.normpath(path)
    if os.path.isdir(path):
        yield from (replace(entry, id=os.path.join(line, entry.id)) for entry in _of_folder(path, unpack_to, options))
    else:
        yield _audio(str(replace(where, path=path)), name=line)


def _of_folder(folder: str, unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    """All audio files in a folder, with relative paths as ids. If there are none, the folder is read as a data set."""
    if _is_set(folder, options):
        yield from _of_manifest(folder, unpack_to, options)
    else:
        paths = (path for path in options.walk(folder) if path.lower().endswith(IN_FOLDERS))
        yield from (_audio(str(Location(path)), name=os.path.relpath(path, folder)) for path in paths)


def _of_manifest(path: str, unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    utterances = read_once([path], role="validation", unpack_to=unpack_to, options=options)
    yield from utterances
    yield from utterances.rejected


def _audio(location: str, *, name: str = "") -> Utterance | Rejected:
    if not location.isprintable():
        shown = location.encode(errors="backslashreplace").decode()
        return Rejected(shown, shown, "its name is not UTF-8, or has control characters; rename the file")
    return Utterance(id=name or os.path.basename(location), location=location)


def _measured(entry: Utterance | Rejected) -> Utterance | Rejected:
    if isinstance(entry, Rejected) or entry.duration_s == entry.duration_s:
        return entry
    try:
        return replace(entry, duration_s=Location.parse(entry.location).info().duration_s)
    except AudioError as error:
        return Rejected(entry.id, entry.location, error.reason)
