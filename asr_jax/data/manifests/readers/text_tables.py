"""Readers of text tables: TSV of ready features, and TSV or CSV with a header line (Common Voice and others).

Lines of features are `features_path⇥rows⇥cols⇥tokens⇥text` with an optional text, and have no header line. TSV has no
quotes: values are the characters between tabs.
"""

import csv
import os
from collections.abc import Iterator

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions, beside, this_file
from asr_jax.data.manifests.readers.fields import InvalidEntry, not_utf8
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance

ENDINGS = (".tsv", ".csv")
NO_END = "the last line has no newline: the file may be truncated; if it is complete, add a newline at its end"


def is_text_table(path: str) -> bool:
    return path.lower().endswith(ENDINGS) and not os.path.isdir(path)


def read_text_table(path: str, unpacked: Unpacked, options: ReadOptions) -> Entries:
    """Reads a TSV or CSV file.

    Args:
        path: File to read.
        unpacked: File for unpacked bytes. Text tables contain none.
        options: Options of reading.

    Raises:
        UserError: If the file cannot be read.
    """
    names: list[str] | None = None
    for number, line in text_lines(path):
        place = f"{path}:{number}"
        try:
            if isinstance(line, InvalidEntry):
                raise line
            values = _values(path, line)
            if number == 1 and _is_names(values):
                names = [value.strip().lower() for value in values]
            elif names is None:
                yield _of_features(values)
            else:
                yield _of_names(names, values, unpacked, options, place)
        except InvalidEntry as error:
            yield Rejected(place, place, str(error))


def with_clips(path: str) -> tuple[str, ...]:
    """Folders that locations may be relative to. In Common Voice, audio is in a folder `clips` beside the table."""
    folder, *others = beside(path)
    return folder, os.path.join(folder, "clips"), *others


TEXT_TABLE = Reader("table of text", is_text_table, this_file, read_text_table, with_clips)


class BadLine(InvalidEntry):
    """Line that is not UTF-8 or may be truncated."""

    def __init__(self, line: bytes, reason: str) -> None:
        super().__init__(reason)
        self.first_word = (line.split() or [b""])[0].decode(errors="replace")


def text_lines(path: str) -> Iterator[tuple[int, str | BadLine]]:
    """Lines that are not blank and their numbers from 1, without byte-order mark and line ends."""
    return ((number, line) for number, line in all_lines(path) if isinstance(line, BadLine) or line.strip())


def all_lines(path: str) -> Iterator[tuple[int, str | BadLine]]:
    """Lines as in `text_lines`, including blank ones.

    A last line without a newline may be truncated and is a BadLine.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                    is_cut = number > 1 and not line.endswith(b"\n")
                    yield number, BadLine(line, NO_END) if is_cut else text
                except UnicodeDecodeError as error:
                    yield number, BadLine(line, not_utf8(line, error))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path (relative paths start at {os.getcwd()})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _values(path: str, line: str) -> list[str]:
    if path.lower().endswith(".tsv"):
        return line.split("\t")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise InvalidEntry(
            f"not a line of CSV ({error}); expected one utterance per line, and quotes in pairs"
        ) from None


def _is_names(values: list[str]) -> bool:
    return len(f.KNOWN & {value.strip().lower() for value in values}) >= 2


def _of_features(values: list[str]) -> Utterance:
    if len(values) not in (4, 5):
        raise InvalidEntry(
            f"{len(values)} columns; expected features_path⇥rows⇥cols⇥tokens⇥text, or a header line of names such as "
            "audio_path and text"
        )
    path, rows, cols, tokens = values[:4]
    if not (rows.strip().isdecimal() and cols.strip().isdecimal()):
        raise InvalidEntry(f"rows {rows!r}, cols {cols!r}: expected whole numbers")
    location = f.feature_file(path, int(rows), int(cols))
    return Utterance(
        id=path, location=str(location), text=values[4] if len(values) == 5 else "",
        duration_s=entries.features_duration_s(int(rows)), labels=f.label_ids(tokens) if tokens.strip() else None,
        num_frames=int(rows), num_values=int(cols),
    )  # fmt: skip


def _of_names(names: list[str], values: list[str], unpacked: Unpacked, options: ReadOptions, place: str) -> Utterance:
    if len(values) > len(names):
        raise InvalidEntry(f"{len(values)} columns; expected {len(names)}, as in the header line")
    # Lines may omit empty columns at their end.
    fields: dict[str, object] = {name: value for name, value in zip(names, values, strict=False) if value}
    return entries.utterance(fields, unpacked, options, name=str(f.first(fields, f.AUDIO_PATH) or place))
