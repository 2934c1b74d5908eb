"""Alignment of a reference and its hypothesis, word by word, with marked errors."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from rapidfuzz.distance import Levenshtein
from rich.cells import cell_len

from asr_jax.text.segmentation import words_of

MARKS = {"equal": "", "replace": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True)
class Pair:
    """One column of an alignment."""

    reference: str
    """A word; empty for an insertion."""
    hypothesis: str
    """A word; empty for a deletion."""
    mark: str
    """`S` for a substitution, `D` for a deletion, `I` for an insertion, empty for equal words."""


def printable(text: str) -> str:
    """Replaces every character that is not printable, such as control characters and surrogates, by `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def align(reference: str, hypothesis: str, *, parts: Callable[[str], Iterable[str]] = words_of) -> list[Pair]:
    """Aligns the words of two texts, or other parts of them, with the least number of errors.

    Args:
        parts: Function that splits a text into the units to align; `str.strip` for characters.
    """
    words, others = ([printable(word) for word in parts(text)] for text in (reference, hypothesis))
    pairs = []
    for part in Levenshtein.opcodes(words, others):
        columns = zip_longest(
            words[part.src_start : part.src_end], others[part.dest_start : part.dest_end], fillvalue=""
        )
        pairs += [Pair(word, other, MARKS[part.tag]) for word, other in columns]
    return pairs


def aligned_lines(reference: str, hypothesis: str, *, width: int = 100) -> list[str]:
    """Returns the lines `ref …`, `hyp …` and, if there are errors, a line of marks.

    `*` replaces a missing word. Long utterances have several such groups of lines.

    Args:
        width: Maximum width of a line in terminal cells. A longer word has a line of its own.
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
