"""Inputs of transcription: audio files, folders, lists, manifests and standard input."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from asr_jax.audio.io import AudioError, is_stream
from asr_jax.audio.pyav import CONTENT_BYTES, SUFFIXES, is_of_ffmpeg
from asr_jax.core.errors import UserError
from asr_jax.core.names import unique
from asr_jax.core.paths import matches
from asr_jax.core.text_files import TextError, split_lines, text_of
from asr_jax.data.manifests.inputs import READERS, described, local_input
from asr_jax.data.manifests.locations import Location, from_windows, local_location
from asr_jax.data.manifests.pipes import is_pipe
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, FOLDER
from asr_jax.data.manifests.readers.json_lines import is_json
from asr_jax.data.manifests.readers.kaldi import KALDI
from asr_jax.data.manifests.reading import read_once
from asr_jax.data.manifests.remote import fetched, is_url, without_query
from asr_jax.data.manifests.utterances import Rejected, Utterance, with_usable_name

STDIN, STDIN_NAME = "-", "standard input"
LISTS = (".txt", ".lst", ".list")
IN_FOLDERS = tuple(dict.fromkeys((*AUDIO_ENDINGS, *SUFFIXES, ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64")))
"""Endings of the files that are taken from a folder. A file that is given as an input is opened whatever its ending."""
MAGIC = re.compile(rb"RIFF....WAVE|RF64|riff|fLaC|OggS|ID3|\xff[\xe0-\xff]|NIST_1A|FORM....AIF|\.snd|caff", re.DOTALL)
"""First bytes of audio files that libsndfile reads: wav, flac, ogg and opus, mp3, sph, aiff, au, caf."""
LONGEST_PATH = 4096


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
    - `-`, standard input, or a named pipe, as of the shell's `<(…)`: audio if it begins with the first bytes of an
      audio file, otherwise one path per line.

    Args:
        read_stdin: Returns up to the given number of bytes of standard input; -1: all.
        folder: Folder for audio that is contained in tables or read from standard input.

    Raises:
        UserError: If a manifest, a list or standard input cannot be read, or if a folder is empty.
    """
    options = ReadOptions(texts_may_lack=True, allow_pipes=allow_pipes)
    entries = [
        with_usable_name(entry)
        for number, given in enumerate(inputs)
        for entry in _of(given, read_stdin, f"{folder}/{number}", options)
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
        yield from _of_stream(read_stdin, STDIN_NAME, f"{unpack_to}.audio", options)
    elif is_stream(given):
        with open(given, "rb") as pipe:
            yield from _of_stream(pipe.read, given, f"{unpack_to}.audio", options)
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
    is_there = os.path.isfile(path) and not _is_list(path)
    return is_there and any(reader.matches(path) for reader in READERS if reader is not FOLDER)


def _of_stream(
    read: Callable[[int], bytes], name: str, path: str, options: ReadOptions
) -> Iterator[Utterance | Rejected]:
    """Utterances of standard input or a pipe: audio, or one path per line.

    Audio is copied to a file first, because decoders seek and a pipe cannot.
    """
    start = read(CONTENT_BYTES)
    if not start:
        raise UserError(f"{name} is empty: expected audio, or paths of audio files, one per line")
    if not (MAGIC.match(start) or is_of_ffmpeg(start)):
        content = start + read(-1)
        if not _are_paths(content):
            raise UserError(
                f"{name} has neither a known audio format nor paths of audio files, one per line: raw samples need a "
                "header, such as by ffmpeg -f s16le -ar 16000 -ac 1 -i - -f wav -"
            )
        for number, line in enumerate(_lines(content, name)):
            yield from _of_line(line, (os.curdir,), f"{path}.{number}", options)
        return
    with open(path, "wb") as file:
        file.write(start)
        while block := read(1 << 20):
            file.write(block)
    yield Utterance(id="stdin" if name == STDIN_NAME else os.path.basename(name), location=path)


def _are_paths(content: bytes) -> bool:
    """Whether most lines may be paths. Bytes of raw samples are control characters, or have no ends of lines."""
    lines = [line for line in content.split(b"\n") if line.strip()]
    num = sum(len(line) <= LONGEST_PATH and not re.search(rb"[\0-\x08\x0e-\x1f\x7f]", line) for line in lines)
    return b"\0" not in content and 2 * num > len(lines)


def _of_list(path: str, unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    try:
        with open(path, "rb") as file:
            lines = _lines(file.read(), path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read as a list: {error.strerror}; expected a path per line") from None
    if not lines:
        raise UserError(f"{path} is empty: expected a path per line")
    for number, line in enumerate(lines):
        roots = os.path.dirname(path) or os.curdir, os.curdir
        yield from _of_line(line, roots, f"{unpack_to}.{number}", options)


def _lines(content: bytes, source: str) -> list[str]:
    """Lines of a list of paths that are not blank. A path that is not UTF-8 has lone surrogates."""
    try:
        return [line for line in split_lines(text_of(content, errors="surrogateescape")) if line.strip()]
    except TextError as error:
        raise UserError(f"{source}: {error}") from None


def _of_line(line: str, roots: tuple[str, ...], unpack_to: str, options: ReadOptions) -> Iterator[Utterance | Rejected]:
    """Utterances of a line of a list: an audio file, a folder of audio or a command."""
    try:
        where = Location.parse(from_windows(local_location(line, allow_pipes=options.allow_pipes), roots))
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


def _audio(location: str, *, name: str = "") -> Utterance:
    return Utterance(id=name or os.path.basename(location), location=location)


def _measured(entry: Utterance | Rejected) -> Utterance | Rejected:
    if isinstance(entry, Rejected) or entry.duration_s == entry.duration_s:
        return entry
    try:
        return replace(entry, duration_s=Location.parse(entry.location).info().duration_s)
    except AudioError as error:
        return Rejected(entry.id, entry.location, error.reason)
