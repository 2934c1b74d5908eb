"""Readers of text tables: TSV of ready features, and TSV or CSV with a header line (Common Voice and others).

Lines of features are `features_path⇥rows⇥cols⇥tokens⇥text` with an optional text, and have no header line. Values
between tabs or bars have quotes of CSV, as pandas writes them, or none, as in Common Voice; `_has_quotes` tells which.
"""

import csv
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.text_files import OtherText, TextError, line_of
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions, beside, is_file_of, this_file, warn_once
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS
from asr_jax.data.manifests.utterances import Rejected, Utterance

TAB = "\t"
SEPARATORS = (TAB, ",", ";", "|")
MAX_LINES = 50
"""Maximum number of lines of a row with line ends in quotes."""
SEP = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
"""Line before the header line that gives the separator to Excel."""
QUOTED = re.compile(r'"(?:[^"]|"")*+"')
DECISIVE = 100
"""Majority of values that decides before the end of the file."""
NO_END = "the last line has no newline: the file may be truncated; if it is complete, add a newline at its end"


class BadLine(InvalidEntry):
    """Line that is not UTF-8 or may be truncated."""

    def __init__(self, line: bytes, reason: str, uncut: str | None = None) -> None:
        """Initialises the error.

        Args:
            reason: Message of the error.
            uncut: Text of a line that may be truncated, because it has no line end. None: the line is not UTF-8.
        """
        super().__init__(reason)
        self.uncut = uncut
        self.first_word = (line.split() or [b""])[0].decode(errors="replace")


def read_text_table(path: str, options: ReadOptions) -> Entries:
    """Reads a TSV or CSV file.

    The separator is the tab, comma, semicolon or vertical bar that results in the most known names in the header line,
    or that of a line `sep=;` before it, as Excel reads it. Values may be in quotes of CSV and then contain line ends.

    Raises:
        UserError: If the file cannot be read.
    """
    separator = separator_of(path)
    is_ljspeech = _is_ljspeech(path)
    separator = TAB if is_ljspeech else separator  # its lines are split later
    is_quoted = not is_ljspeech and _has_quotes(path, separator)
    names: list[str] | None = None
    for row, (number, line) in enumerate(_rows(path, separator, is_quoted)):
        is_first = row == 0
        place = f"{path}:{number}"
        try:
            if isinstance(line, BadLine) and (line.uncut is None or (names is None and not is_ljspeech)):
                raise line
            text = line.uncut if isinstance(line, BadLine) else line
            values = _values(text or "", separator, is_quoted)
            if is_first and _num_names(values) >= 2:
                names = [value.strip().lower() for value in values]
            elif names is None and is_ljspeech:
                yield _of_ljspeech(text or "", path)
            elif names is None:
                if separator != TAB and is_first:
                    raise UserError(_no_names(path, values))
                yield _of_features(values)
            elif isinstance(line, BadLine) and len(values) < len(names):
                raise line
            else:
                yield _of_names(names, values, options, place)
        except InvalidEntry as error:
            yield Rejected(place, place, str(error), error.stage)


def rows_of(path: str, separator: str) -> Iterator[tuple[int, list[str] | InvalidEntry]]:
    """Values of the rows that are not blank, including the header line, with the number of their first line.

    Raises:
        UserError: If the file cannot be read.
    """
    is_quoted = _has_quotes(path, separator)
    for number, line in _rows(path, separator, is_quoted):
        try:
            yield number, line if isinstance(line, BadLine) else _values(line, separator, is_quoted)
        except InvalidEntry as error:
            yield number, error


def separator_of(path: str) -> str:
    """Separator of the columns, from the header line; without known names, that of the file's ending."""
    given, header = _beginning(path)
    if given:
        return given
    usual = TAB if path.lower().endswith(".tsv") else ","
    return max((usual, *SEPARATORS), key=lambda separator: _num_names(header.replace('"', "").split(separator)))


def _beginning(path: str) -> tuple[str, str]:
    """Separator of a line `sep=;` (empty: there is none), and the header line, without byte-order mark and line end."""
    with open(path, "rb") as file:
        lines = (line.decode("utf-8-sig", "replace") for line in iter(lambda: file.readline(1 << 20), b""))
        found = (line.rstrip("\r\n") for line in lines if line.strip())
        first = next(found, "")
        given = SEP.fullmatch(first)
        return (given[1], next(found, "")) if given else ("", first)


def _has_quotes(path: str, separator: str) -> bool:
    """Whether values are in quotes of CSV.

    Between tabs and bars, quotes may also belong to the text. Evidence for quotes of CSV is a quoted value with a
    doubled quote, a separator or a line end; evidence against them is a value with other quotes. A quoted value that
    needs no quotes is no evidence, because a text may be a quotation. The majority decides. Without evidence, values
    between tabs have no quotes.
    """
    if separator not in (TAB, "|"):
        return True
    with open(path, "rb") as file:
        if not any(b'"' in line for line in file):  # ten times as fast as `_rows`
            return separator == "|"
    column = re.compile(rf'(?:^|{re.escape(separator)})("(?:[^"]|"")*+"(?={re.escape(separator)}|$)|[^{separator}]*+)')
    num, num_against, is_first = 0, 0, True
    for _, line in _rows(path, separator, True):
        text = _text(line) or ""
        if '"' in text:
            values = column.findall(text)
            if is_first and all(QUOTED.fullmatch(value) for value in values):
                return True  # a header line in quotes
            quoted = [value[1:-1] for value in values if QUOTED.fullmatch(value)]
            num += sum('""' in value or separator in value or "\n" in value for value in quoted)
            num_against += sum('"' in value for value in values) - len(quoted)
        is_first = False
        if abs(num - num_against) >= DECISIVE:
            break
    is_quoted = num > num_against or (separator == "|" and num == num_against)
    if num and num_against:
        warn_once(
            f"{path}: {counted(num, 'value')} in quotes of CSV, and {num_against} with other quotes: read "
            f"{'with' if is_quoted else 'without'} quotes of CSV; write all values in one way"
        )
    return is_quoted


def _rows(path: str, separator: str, is_quoted: bool) -> Iterator[tuple[int, str | BadLine]]:
    """Rows that are not blank, with the number of their first line, without a line `sep=;` before them.

    The lines of a quoted value are joined. If the joined lines are not a row of CSV, or one of them has its own audio
    file, for example because texts have single quotes at their start, the first line is a row of its own.
    """
    lines, waiting = all_lines(path), deque[tuple[int, str | BadLine]]()
    whole, column = _whole_row(separator), _audio_column(path, separator)
    is_first = True
    while first := waiting.popleft() if waiting else next(lines, None):
        number, line = first
        text = _text(line)
        if is_first and text and text.strip():
            is_first = False
            if SEP.fullmatch(text):
                continue
        if text is not None and is_quoted and '"' in text and not whole.fullmatch(text):
            taken = list[tuple[int, str | BadLine]]()
            while text is not None and not whole.fullmatch(text) and len(taken) < MAX_LINES - 1:
                more = waiting.popleft() if waiting else next(lines, None)
                if more is None:
                    break
                taken.append(more)
                added = _text(more[1])
                text = None if added is None else f"{text}\n{added}"
            if text is not None and _is_row(text, separator, column):
                yield number, text
                continue
            waiting.extendleft(reversed(taken))
        if isinstance(line, BadLine) or line.strip():
            yield number, line


def _text(line: str | BadLine) -> str | None:
    """Text of a line, also of one that may be truncated; None if it is not UTF-8."""
    return line.uncut if isinstance(line, BadLine) else line


def _whole_row(separator: str) -> re.Pattern[str]:
    """Pattern of rows in which each quoted value ends. A quote opens a value only at its start, as in `csv.reader`."""
    value = rf'(?: *+"(?:[^"]|"")*+"[^{separator}]*+| *+(?!")[^{separator}]*+)'
    return re.compile(rf"{value}(?:[{separator}]{value})*+")


def _audio_column(path: str, separator: str) -> int | None:
    """Place of the first column with paths of audio; None if there is none."""
    names = [name.strip().strip('"').lower() for name in _beginning(path)[1].split(separator)]
    return next((place for place, name in enumerate(names) if name in (*f.AUDIO_PATH, *f.AUDIO)), None)


def _is_row(text: str, separator: str, column: int | None) -> bool:
    """Whether joined lines are one row of CSV."""
    try:
        _values(text, separator, True)
    except InvalidEntry:
        return False
    later = text.split("\n")[1:]
    if column != 0:
        later = later[:-1]  # the last line of a row has its other columns
    return column is None or not any(
        value.strip().lower().endswith(AUDIO_ENDINGS) for line in later for value in line.split(separator)[column:][:1]
    )


def with_clips(path: str) -> tuple[str, ...]:
    """Folders that locations may be relative to. In Common Voice, audio is in a folder `clips` beside the table."""
    folder, *others = beside(path)
    return folder, os.path.join(folder, "clips"), *others


def details(path: str) -> str:
    """Separator of a table and the columns that are used."""
    if _is_ljspeech(path):
        return "table of LJSpeech (ID|text|normalised text)"
    separator = separator_of(path)
    header = _beginning(path)[1]
    names = [value.strip().strip('"').lower() for value in header.split(separator)]
    return f"table separated by {NAMES[separator]} ({f.used(names) or 'features'})"


NAMES = {TAB: "tabs", ",": "commas", ";": "semicolons", "|": "bars"}
TEXT_TABLE = Reader("table of text", is_file_of(".tsv", ".csv"), this_file, read_text_table, with_clips, details)


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
                    text = line_of(line, number)
                    is_cut = number > 1 and not line.endswith(b"\n")
                    yield number, BadLine(line, NO_END, text) if is_cut else text
                except OtherText as error:
                    raise UserError(f"{path}: {error}") from None
                except TextError as error:
                    yield number, BadLine(line, str(error))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _values(line: str, separator: str, is_quoted: bool) -> list[str]:
    if not is_quoted:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise InvalidEntry(
            f"not a line of CSV ({error}); expected one utterance per line, and quotes in pairs"
        ) from None


def _is_ljspeech(path: str) -> bool:
    """Whether a file is LJSpeech's `metadata.csv`: `ID|text|normalised text` without a header, audio in `wavs`."""
    if not os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(path)), "wavs")):
        return False
    values = _beginning(path)[1].split("|")
    return len(values) in (2, 3) and not _num_names(values)


def _of_ljspeech(line: str, path: str) -> Utterance:
    """Utterance of a line `ID|text|normalised text`; the normalised text is used."""
    name, *texts = line.split("|")
    if not 1 <= len(texts) <= 2:
        raise InvalidEntry(f"{len(texts) + 1} columns; expected ID|text|normalised text")
    file = name if name.lower().endswith(AUDIO_ENDINGS) else f"{name}.wav"
    return Utterance(id=name, location=os.path.join("wavs", file), text=texts[-1] or texts[0])


def _num_names(values: Sequence[str]) -> int:
    return f.num_names(value.strip().lower() for value in values)


def _no_names(path: str, values: Sequence[str]) -> str:
    shown = ", ".join(map(repr, values[:8])) + (" …" if len(values) > 8 else "")
    columns = _beginning(path)[1].split("|")
    if len(columns) in (2, 3) and re.fullmatch(r"[\w.-]+", columns[0]):
        wavs = os.path.join(os.path.dirname(os.path.abspath(path)), "wavs")
        return (
            f"{path}:1: ID|text without a header line, as in metadata.csv of LJSpeech, but there is no folder {wavs}: "
            "expected the audio there as ID.wav, or a header line such as audio_path|text"
        )
    return (
        f"{path}:1: the columns {shown} have fewer than two known names; expected a header line such as "
        "audio_path,text,duration (also wav_filename,transcript; file_name,transcription; ID,wav,wrd): add it, or "
        "rename the columns"
    )


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
        id=path,
        location=str(location),
        text=values[4] if len(values) == 5 else "",
        duration_s=entries.features_duration_s(int(rows)),
        labels=f.label_ids(tokens) if tokens.strip() else None,
        num_frames=int(rows),
        num_values=int(cols),
    )


def _of_names(names: list[str], values: list[str], options: ReadOptions, place: str) -> Utterance:
    if len(values) > len(names):
        raise InvalidEntry(f"{len(values)} columns; expected {len(names)}, as in the header line")
    # Lines may omit empty columns at their end.
    fields: dict[str, object] = {name: value for name, value in zip(names, values, strict=False) if value}
    return entries.utterance(fields, options, name=str(f.first(fields, f.AUDIO_PATH) or place))
