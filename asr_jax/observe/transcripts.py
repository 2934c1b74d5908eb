"""Alignment of a reference and its hypothesis, word by word, with marked errors."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rapidfuzz.distance import Levenshtein
from rich.cells import cell_len, set_cell_size

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

    @property
    def size(self) -> int:
        """Width of the column in terminal cells."""
        return max(cell_len(self.reference), cell_len(self.hypothesis), 1)

    def cells(self) -> tuple[str, str, str]:
        """Returns reference, hypothesis and mark in the width of the column; `*` replaces a missing word."""
        words = (self.reference or "*" * self.size, self.hypothesis or "*" * self.size, self.mark)
        first, second, third = (word + " " * (self.size - cell_len(word)) for word in words)
        return first, second, third


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
        width: Maximum width of a line in terminal cells. A longer word has a line of its own, and is cut.
    """
    lines: list[str] = []
    for pairs in aligned_groups(reference, hypothesis, width=width):
        rows = zip(("ref ", "hyp ", "    "), *(pair.cells() for pair in pairs), strict=True)
        lines += [line.rstrip() for row in rows if (line := " ".join(row)).strip()]
    return lines


def aligned_groups(reference: str, hypothesis: str, *, width: int) -> Iterator[list[Pair]]:
    """Yields the columns of an alignment in groups of at most `width` cells, with five cells before the first column.

    Two empty texts give one empty group.
    """
    group, used = list[Pair](), 4
    for whole in align(reference, hypothesis):
        pair = Pair(_cut(whole.reference, width - 5), _cut(whole.hypothesis, width - 5), whole.mark)
        if group and used + 1 + pair.size > width:
            yield group
            group, used = [], 4
        group.append(pair)
        used += 1 + pair.size
    yield group


def _cut(word: str, width: int) -> str:
    """Cuts a word that is wider than `width` cells, as after a repeated label, and counts the characters left out."""
    if cell_len(word) <= width:
        return word
    kept = set_cell_size(word, max(width - 10, 1)).rstrip()
    return f"{kept}…(+{len(word) - len(kept):,})"
