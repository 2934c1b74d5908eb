"""Text files and standard streams: UTF-8 whatever the locale is, and lines that end with a newline.

This package reads and writes all text with these functions; tests/core/test_text_files.py checks it. A newline ends a
line, with or without a carriage return before it. Other separators, such as U+2028, U+0085 and a lone carriage return,
are characters of a line. The rules of `str.splitlines`, and of files that Python opens as text by default, differ.
"""

import codecs
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

PathLike = str | os.PathLike[str]
MARK = codecs.BOM_UTF8
"""Byte-order mark of UTF-8 at the beginning of a file. Reading removes it."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# JSON escapes other control characters itself. Readers that call `str.splitlines` split lines at the first three.
_ESCAPED = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


class TextError(ValueError):
    """Error: the content of a file is not text as expected. The message has the reason and the fix."""


class OtherText(TextError):
    """Error: the whole file has another encoding or other ends of lines."""


def text_of(content: bytes, *, errors: str = "strict") -> str:
    """Decodes the content of a text file, without its byte-order mark.

    Raises:
        TextError: If it is not UTF-8.
    """
    check_encoding(content)
    return _decoded(content, "utf-8-sig", errors)


def check_encoding(start: bytes) -> None:
    """Checks the first bytes of a text file.

    Raises:
        OtherText: If the text is UTF-16.
    """
    if start.startswith(_UTF_16):
        raise OtherText("the text is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 IN > OUT converts it")


def _decoded(content: bytes, codec: str = "utf-8", errors: str = "strict") -> str:
    try:
        return content.decode(codec, errors)
    except UnicodeDecodeError as error:
        raise TextError(
            f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start}); save it as UTF-8; "
            "from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT"
        ) from None


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text without their ends.

    Raises:
        TextError: If a lone carriage return ends the lines, as in files of old Macs.
    """
    if "\n" not in text and "\r" in text.rstrip("\r"):
        raise OtherText(r"carriage returns alone end its lines; expected newlines: tr '\r' '\n' < IN > OUT converts it")
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]


def line_of(content: bytes, number: int) -> str:
    """Decodes a line of a text file, without its end.

    Args:
        number: Number of the line, from 1. The first line shows whether the file has another encoding.

    Raises:
        TextError: If it is not UTF-8, or a lone carriage return ends the lines.
    """
    return _decoded(content).rstrip("\r\n") if number > 1 else split_lines(text_of(content) or "\n")[0]


def read_text(path: PathLike) -> str:
    """Reads a text file.

    Raises:
        OSError: If it cannot be opened.
        TextError: If it is not UTF-8.
    """
    with open(path, "rb") as file:
        return text_of(file.read())


def read_lines(path: PathLike) -> Iterator[str]:
    """Yields the lines of a text file without their ends.

    Raises:
        OSError: If the file cannot be opened.
        TextError: If a line is not UTF-8, or a lone carriage return ends the lines.
    """
    with open(path, "rb") as file:
        yield from (line_of(line, number) for number, line in enumerate(file, 1))


def bytes_of(text: str) -> bytes:
    """Encodes the content of a text file, as `text_of` decodes it.

    A lone surrogate, which UTF-8 does not have, is written as an escape sequence of six characters.
    """
    return MARK * text.startswith("\ufeff") + text.encode(errors="backslashreplace")


def open_text(path: PathLike) -> TextIO:
    """Opens a text file to write it. Lone surrogates are written as in `bytes_of`."""
    return open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Returns a value as JSON, which all readers divide into the same lines and which UTF-8 can encode."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if text.isascii() else _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_line(value: Any) -> str:
    """Returns a value as a line of JSON."""
    return json_text(value) + "\n"


def use_utf8() -> None:
    """Makes the commands read and write UTF-8 if the locale has another encoding.

    Python encodes the names of files by the locale when it starts. If that is not UTF-8, the command starts again in
    Python's UTF-8 mode: the names in manifests are UTF-8, and libraries open text files without an encoding. Standard
    output and standard error are UTF-8 too, and characters that they cannot encode do not end a command.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        command = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONUTF8": "1"})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
