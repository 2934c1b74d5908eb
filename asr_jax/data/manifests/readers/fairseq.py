"""fairseq's lists: `SET.tsv` (a root folder, then `path⇥samples`) with `SET.ltr` or `SET.wrd` beside it, line by line.

A path may be `FILE.zip:first byte:bytes`. fairseq trains on 16 kHz alone: that is what samples are counted at.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.text_tables import BadLine, all_lines, text_lines
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

RATE_HZ = 16000
BOUNDARY = "|"
DICTIONARY = "dict.ltr.txt"


def is_fairseq(path: str) -> bool:
    """A .tsv whose first line has no tab, and whose second line is a path and a number."""
    if not path.lower().endswith(".tsv") or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        root, first = file.readline(), file.readline().rstrip(b"\r\n").split(b"\t")
    return b"\t" not in root and len(first) == 2 and first[1].isdigit()


def files(path: str, options: ReadOptions) -> list[str]:
    stem = os.path.splitext(path)[0]
    return [name for name in (path, f"{stem}.ltr", f"{stem}.wrd") if os.path.exists(name)]


def read_fairseq(path: str, unpacked: Unpacked, options: ReadOptions) -> Entries:
    root, *rows = list(text_lines(path)) or [(0, "")]
    if isinstance(root[1], BadLine):
        raise UserError(f"{path}:1: the root folder is {root[1]}")
    folder = os.path.join(os.path.dirname(os.path.abspath(path)), root[1])
    texts = _texts(path)
    if texts is not None and len(texts) != len(rows):
        raise UserError(
            f"{path} has {len(rows)} recordings and its transcripts {len(texts)} lines: expected as many, in this order"
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
    """A text as fairseq's letters: `A B | C |`."""
    return " ".join(" ".join(word) + f" {BOUNDARY}" for word in text.split())


def _texts(path: str) -> list[str | BadLine] | None:
    """Of every recording; a blank line is the text of one in which nothing is said."""
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
    """Writes `SET.tsv`, `.wrd` and `.ltr` of utterances that are whole files of audio at 16 kHz, and `dict.ltr.txt` where
    there is none yet: its lines number the labels of all sets of a folder. Rates are not looked at: see `at_16_khz`.

    Raises: UserError for an utterance that fairseq's lists cannot say; nothing is written then.
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
    """The utterance with the duration of its file's header. Raises: UserError for audio of another rate, or none."""
    try:
        info = Location.parse(utterance.location).info()
    except AudioError as error:
        raise UserError(f"utterance {utterance.id}: {error}; leave it out") from None
    if info.rate_hz != RATE_HZ:
        raise UserError(
            f"utterance {utterance.id} ({utterance.location}) has {info.rate_hz} Hz; fairseq trains on {RATE_HZ} Hz alone: "
            "convert its audio first"
        )
    return replace(utterance, duration_s=info.duration_s)


def _write_lines(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _entry(utterance: Utterance) -> str:
    """How a list names an utterance's file. Raises: UserError for what it cannot say of it."""
    location = Location.parse(utterance.location)
    in_zip = location.path.endswith(".zip") and location.num_bytes is not None
    whole = Location(location.path, location.first_byte, location.num_bytes) if in_zip else Location(location.path)
    if location != whole or set(location.path) & set("\t\r\n"):
        raise UserError(
            f"utterance {utterance.id} ({location}) is not a whole file, which is all that fairseq's lists can name; write "
            "its audio to a file first"
        )
    if BOUNDARY in utterance.text:
        raise UserError(
            f"utterance {utterance.id} has {BOUNDARY!r} in its text ({utterance.text!r}), which fairseq takes for the end of a "
            "word; take it out"
        )
    if utterance.labels is not None and not utterance.text:
        raise UserError(
            f"utterance {utterance.id} has token ids and no text, and fairseq's lists have only letters; give its manifest "
            "a text"
        )
    path = location.path.lstrip("/")
    return f"{path}:{location.first_byte}:{location.num_bytes}" if in_zip else path
