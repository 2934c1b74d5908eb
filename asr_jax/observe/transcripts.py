"""A reference over its hypothesis, word under word, with the errors marked."""

from dataclasses import dataclass
from itertools import zip_longest

from rapidfuzz.distance import Levenshtein
from rich.cells import cell_len

MARKS = {"equal": "", "replace": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True)
class Pair:
    """One column of an alignment."""

    reference: str
    """A word, or an empty string where one was inserted."""
    hypothesis: str
    """A word, or an empty string where one was deleted."""
    mark: str
    """`S` substituted, `D` deleted, `I` inserted, or an empty string."""


def printable(text: str) -> str:
    """`text` with every character that could move a cursor or break an encoder shown as `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def align(reference: str, hypothesis: str) -> list[Pair]:
    """Words paired along one path of least errors."""
    words, heard = printable(" ".join(reference.split())).split(), printable(" ".join(hypothesis.split())).split()
    pairs = []
    for part in Levenshtein.opcodes(words, heard):
        columns = zip_longest(
            words[part.src_start : part.src_end], heard[part.dest_start : part.dest_end], fillvalue=""
        )
        pairs += [Pair(word, other, MARKS[part.tag]) for word, other in columns]
    return pairs


def aligned_lines(reference: str, hypothesis: str, *, width: int = 100) -> list[str]:
    """Lines `ref ..`, `hyp ..` and, where there are errors, their marks; a missing word is shown as `*`. Long
    utterances go on in further groups of lines, each at most `width` cells wide (or one word, if that is wider).
    """
    lines: list[str] = []
    rows = ["ref ", "hyp ", "    "]
    for pair in align(reference, hypothesis):
        size = max(cell_len(pair.reference), cell_len(pair.hypothesis), 1)
        if cell_len(rows[0]) > 4 and cell_len(rows[0]) + 1 + size > width:
            lines += _finished(rows)
            rows = ["ref ", "hyp ", "    "]
        words = (pair.reference or "*" * size, pair.hypothesis or "*" * size, pair.mark)
        rows = [row + " " + word + " " * (size - cell_len(word)) for row, word in zip(rows, words, strict=True)]
    return lines + _finished(rows)


def _finished(rows: list[str]) -> list[str]:
    return [row.rstrip() for row in rows if row.strip()]
