"""Reader and writer of fairseq's lists: `SET.tsv` with `SET.ltr` or `SET.wrd` beside it, line by line.

The first line of `SET.tsv` is a root folder, and the others are `path⇥samples`. A path may be `FILE.zip:first
byte:bytes`. fairseq trains only on 16 kHz; samples are counted at that rate.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import one_line
from asr_jax.core.paths import is_utf8
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.text_tables import BadLine, all_lines, text_lines
from asr_jax.data.manifests.utterances import Rejected, Utterance

RATE_HZ = 16000
BOUNDARY = "|"
DICTIONARY = "dict.ltr.txt"


def is_fairseq(path: str) -> bool:
    """Whether a file is a .tsv with no tab in its first line, and a path and a number in its second line."""
    if not path.lower().endswith(".tsv") or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        root, first = file.readline(), file.readline().rstrip(b"\r\n").split(b"\t")
    return b"\t" not in root and len(first) == 2 and first[1].isdigit()


def files(path: str, options: ReadOptions) -> list[str]:
    stem = os.path.splitext(path)[0]
    return [name for name in (path, f"{stem}.ltr", f"{stem}.wrd") if os.path.exists(name)]


def read_fairseq(path: str, options: ReadOptions) -> Entries:
    """Reads a list and the transcripts beside it.

    Raises:
        UserError: If the list cannot be read, or if the transcripts have another number of lines.
    """
    root, *rows = list(text_lines(path)) or [(0, "")]
    if isinstance(root[1], BadLine):
        raise UserError(f"{path}:1: the root folder is {root[1]}")
    folder = os.path.join(os.path.dirname(os.path.abspath(path)), root[1])
    texts = _texts(path)
    if texts is not None and len(texts) != len(rows):
        raise UserError(
            f"{path} has {len(rows)} recordings, but its transcripts have {len(texts)} lines: expected one line per "
            "recording, in the same order"
        )
    for (number, line), text in zip(rows, texts or [""] * len(rows), strict=True):
        place = f"{path}:{number}"
        try:
            yield _utterance(line, text, folder)
        except InvalidEntry as error:
            yield Rejected(line.partition("\t")[0] if isinstance(line, str) else place, place, str(error))


FAIRSEQ = Reader("fairseq list", is_fairseq, files, read_fairseq)


def _utterance(line: str | BadLine, text: str | BadLine, folder: str) -> Utterance:
    for part in (line, text):
        if isinstance(part, BadLine):
            raise part
    name, _, num_samples = str(line).partition("\t")
    if not num_samples.isdecimal():
        raise InvalidEntry(f"{line!r}: expected a path, a tab and the number of samples")
    return Utterance(name, str(_location(name).beside(folder)), str(text), int(num_samples) / RATE_HZ)


def letters(text: str) -> str:
    """Text as fairseq's letters: `A B | C |`."""
    return " ".join(" ".join(word) + f" {BOUNDARY}" for word in text.split())


def _texts(path: str) -> list[str | BadLine] | None:
    """Texts of all recordings; a blank line is an empty text. None if there are no transcripts."""
    stem = os.path.splitext(path)[0]
    if os.path.exists(f"{stem}.wrd"):
        return [line for _, line in all_lines(f"{stem}.wrd")]
    if os.path.exists(f"{stem}.ltr"):
        return [line if isinstance(line, BadLine) else _words(line) for _, line in all_lines(f"{stem}.ltr")]
    return None


def _words(spelt: str) -> str:
    return " ".join(spelt.replace(" ", "").replace(BOUNDARY, " ").split())


def _location(name: str) -> Location:
    path, *span = name.rsplit(":", 2)
    if len(span) == 2 and path.endswith(".zip") and span[0].isdecimal() and span[1].isdecimal():
        return Location(path, first_byte=int(span[0]), num_bytes=int(span[1]))
    return Location(name)


def write_fairseq(path: str, utterances: Iterable[Utterance]) -> None:
    """Writes `SET.tsv`, `.wrd` and `.ltr` of utterances that are whole audio files at 16 kHz.

    `dict.ltr.txt` is written if it does not exist. Its lines number the labels of all sets of a folder. Sample rates
    are not checked; see `at_16_khz`.

    Raises:
        UserError: If fairseq's lists cannot express an utterance. Nothing is written then.
    """
    entries, texts = [], []
    for utterance in utterances:
        entries.append(f"{_entry(utterance)}\t{round(utterance.duration_s * RATE_HZ)}")
        texts.append(" ".join(utterance.text.split()))
    spelt = [letters(text) for text in texts]
    stem = os.path.splitext(path)[0]
    _write_lines(path, ["/", *entries])
    _write_lines(f"{stem}.wrd", texts)
    _write_lines(f"{stem}.ltr", spelt)
    dictionary = os.path.join(os.path.dirname(os.path.abspath(path)), DICTIONARY)
    if not os.path.exists(dictionary):
        counts = Counter(letter for text in spelt for letter in text.split())
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        _write_lines(dictionary, [f"{name} {num}" for name, num in ranked])


def at_16_khz(utterance: Utterance) -> Utterance:
    """Utterance with the duration of its file's header.

    Raises:
        UserError: If the audio cannot be read or has another rate.
    """
    try:
        info = Location.parse(utterance.location).info()
    except AudioError as error:
        raise UserError(f"utterance {utterance.id}: {error}; remove the utterance") from None
    if info.rate_hz != RATE_HZ:
        raise UserError(
            f"utterance {utterance.id} ({utterance.location}) has {info.rate_hz} Hz; fairseq trains only on {RATE_HZ} "
            "Hz: convert the audio first"
        )
    return replace(utterance, duration_s=info.duration_s)


def _write_lines(path: str, lines: Iterable[str]) -> None:
    write_whole(Path(path), "".join(f"{line}\n" for line in lines))


def _entry(utterance: Utterance) -> str:
    """Path of an utterance's file in a list.

    Raises:
        UserError: If a list cannot express the utterance.
    """
    location = Location.parse(utterance.location)
    in_zip = location.path.endswith(".zip") and location.num_bytes is not None
    whole = Location(location.path, location.first_byte, location.num_bytes) if in_zip else Location(location.path)
    if location != whole or set(location.path) & set("\t\r\n"):
        raise UserError(
            f"utterance {utterance.id} ({location}) is not a whole file; fairseq's lists have only whole files: write "
            "its audio to a file first"
        )
    if not is_utf8(location.path + utterance.text):
        raise UserError(
            f"utterance {one_line(utterance.id)} has a lone surrogate in its path or text "
            f"({one_line(utterance.text)}), which UTF-8 does not have; remove it"
        )
    if BOUNDARY in utterance.text:
        raise UserError(
            f"utterance {utterance.id} has {BOUNDARY!r} in its text ({utterance.text!r}), which ends a word in "
            "fairseq's lists; remove it"
        )
    if utterance.labels is not None and not utterance.text:
        raise UserError(
            f"utterance {utterance.id} has token ids but no text; fairseq's lists have only letters: add a text to the "
            "manifest"
        )
    path = location.path.lstrip("/")
    return f"{path}:{location.first_byte}:{location.num_bytes}" if in_zip else path
