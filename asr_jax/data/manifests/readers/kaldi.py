"""Reader of Kaldi's data folders: `wav.scp text`, and optionally `segments utt2spk utt2dur reco2dur`.

`wav.scp` may have commands instead of paths, which are resolved as in every manifest (`data.manifests.pipes`).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions, beside
from asr_jax.data.manifests.readers.fields import InvalidEntry, number
from asr_jax.data.manifests.readers.parts import part_of, placed
from asr_jax.data.manifests.readers.text_tables import BadLine, text_lines
from asr_jax.data.manifests.utterances import Rejected, Utterance

FILES = ("wav.scp", "text", "segments", "utt2spk", "utt2dur", "reco2dur")
BLANKS = " \t\r"
FIELDS = re.compile(f"[{BLANKS}]+")
"""White space between fields. Other white space, such as U+3000, is a character of an id or a path."""
LEVELS = 3
"""Number of folders above the parent folder that paths may be relative to. ESPnet's are `dump/raw/train`."""

Table = Mapping[str, str | InvalidEntry]


def is_kaldi(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "wav.scp"))


def files(path: str, options: ReadOptions) -> list[str]:
    return [os.path.join(path, name) for name in FILES if os.path.exists(os.path.join(path, name))]


def roots(path: str) -> tuple[str, ...]:
    """Folders that paths may be relative to: those of `beside`, and the folders above, as in ESPnet's dumps."""
    folder, parent, current = beside(os.path.join(path, "wav.scp"))
    above = [parent]
    for _ in range(LEVELS):
        above.append(os.path.dirname(above[-1]))
    return folder, *above, current


def read_kaldi(path: str, options: ReadOptions) -> Entries:
    """Reads a Kaldi data folder.

    Raises:
        UserError: If a file of the folder cannot be read.
    """
    tables = {file: _table(os.path.join(path, file)) for file in FILES}
    names = tables["segments"] or tables["wav.scp"]
    for name in names:
        try:
            if name not in tables["text"] and not options.texts_may_lack:
                raise InvalidEntry("no line in the file text")
            text, speaker = _value(tables["text"], name), _value(tables["utt2spk"], name)
            location, duration_s = _signal(name, tables, options)
            yield Utterance(name, location, text, duration_s, speaker)
        except InvalidEntry as error:
            yield Rejected(name, f"{path}: {name}", str(error))
    for name in (name for name in tables["text"] if name not in names):
        yield Rejected(name, f"{path}: {name}", "in the file text, but in neither segments nor wav.scp")


KALDI = Reader("Kaldi data folder", is_kaldi, files, read_kaldi, roots)


def _table(path: str) -> Table:
    """Lines of a file by their first word. Empty if there is no such file.

    A word with two lines has an InvalidEntry.
    """
    if not os.path.exists(path):
        return {}
    table: dict[str, str | InvalidEntry] = {}
    for _, line in text_lines(path):
        name, *rest = [line.first_word] if isinstance(line, BadLine) else FIELDS.split(line.strip(BLANKS), 1)
        if name in table:
            table[name] = InvalidEntry(f"two lines in the file {os.path.basename(path)}; expected one")
        elif isinstance(line, BadLine):
            table[name] = line
        else:
            table[name] = rest[0] if rest else ""
    return table


def _value(table: Table, name: str) -> str:
    """Rest of a line after its first word. Empty if there is no such line."""
    value = table.get(name, "")
    if isinstance(value, InvalidEntry):
        raise value
    return value


def _signal(name: str, tables: Mapping[str, Table], options: ReadOptions) -> tuple[str, float]:
    """Location of an utterance, and its duration in seconds, NaN if it is not known."""
    if tables["segments"]:
        return _segment(_value(tables["segments"], name), tables["wav.scp"], options)
    length = _value(tables["utt2dur"], name) or _value(tables["reco2dur"], name)
    return str(_location(_value(tables["wav.scp"], name))), part_of({"duration": length}, options).length_s


def _segment(line: str, recordings: Table, options: ReadOptions) -> tuple[str, float]:
    """Location and duration of a segment `recording start end [channel]`. An end of -1 is the end of the recording."""
    recording, start, end, channel = (*FIELDS.split(line), "", "", "", "")[:4]
    if not end:
        raise InvalidEntry(f"segment {line!r}; expected recording, start and end in seconds")
    if recording not in recordings:
        raise InvalidEntry(f"recording {recording} is not in wav.scp")
    is_open = number(end) == -1
    part = part_of({"start": start, "end": None if is_open else end, "channel": channel or None}, options)
    location = replace(_location(_value(recordings, recording)), may_overshoot=not is_open)
    return placed(location, part), part.length_s


def _location(entry: str) -> Location:
    """Location of a line of wav.scp.

    Raises:
        InvalidEntry: If the line is audio in an archive.
    """
    path, _, offset = entry.rpartition(":")
    if path.endswith(".ark") and offset.isdecimal():
        raise InvalidEntry(f"{entry}: audio in an archive cannot be read; write it to files first (wav-copy)")
    return Location(entry)
