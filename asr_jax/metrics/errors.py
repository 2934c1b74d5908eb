"""Edit counts of words and characters, and the error rates computed from their sums."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64
from rapidfuzz.distance import Levenshtein

from asr_jax.text.segmentation import words_of

Alignment = Literal["fewest_edits", "sclite"]
"""Alignment by which word errors are counted. fewest_edits: an alignment with the fewest errors, as in jiwer. sclite:
the alignment of NIST's sclite, which may have more errors and other kinds of errors."""
EDITS = (
    "substitutions",
    "deletions",
    "insertions",
    "words",
    "character_substitutions",
    "character_deletions",
    "character_insertions",
    "characters",
)
"""Columns of `count_errors`: edits and reference length, in words and in characters."""
TOKEN_EDITS = ("token_substitutions", "token_deletions", "token_insertions", "tokens")
"""Columns of `count_token_errors`: edits and reference length, in labels of the model."""
SUBSTITUTION, GAP = 4, 3
"""Costs of a substitution, and of a deletion or an insertion, in NIST's sclite."""


@dataclass(frozen=True)
class ErrorCounts:
    """Edits between references and hypotheses. Counts of several utterances are added with `+`."""

    substitutions: int = 0
    deletions: int = 0
    """Reference words that are missing in the hypotheses."""
    insertions: int = 0
    """Hypothesis words that are missing in the references."""
    words: int = 0
    """Words (or characters) in the references."""
    utterances: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def hits(self) -> int:
        """Number of correctly recognised reference words."""
        return self.words - self.substitutions - self.deletions

    @property
    def rate(self) -> float:
        """Errors per reference word; may exceed 1. NaN if there are no reference words."""
        return self.errors / self.words if self.words else float("nan")

    @property
    def match_error_rate(self) -> float:
        """Match error rate: errors per aligned pair, in 0..1 (Morris et al. 2004); 0 if both sides are empty."""
        return self.errors / (self.hits + self.errors) if self.errors else 0.0

    @property
    def information_lost(self) -> float:
        """Word information lost, in 0..1 (Morris et al. 2004); 0 if both sides are empty.

        The formula is `1 - hits² / (reference words · hypothesis words)`.
        """
        hypothesis_words = self.hits + self.substitutions + self.insertions
        if not self.words or not hypothesis_words:
            return float(self.words != hypothesis_words)
        return 1.0 - self.hits / self.words * (self.hits / hypothesis_words)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(*map(operator.add, astuple(self), astuple(other)))


def word_errors(reference: str, hypothesis: str, alignment: Alignment = "fewest_edits") -> ErrorCounts:
    """Counts the word edits of one utterance. Words are those of `text.segmentation`."""
    edits = ALIGNMENTS[alignment](words_of(reference), words_of(hypothesis))
    return ErrorCounts(*edits, utterances=1)


def count_errors(
    references: Sequence[str], hypotheses: Sequence[str], *, alignment: Alignment = "fewest_edits"
) -> Int64[np.ndarray, "N 8"]:
    """Counts the `EDITS` of each utterance: of words (`text.segmentation`), and of characters with inner spaces.

    Source: jiwer 4.0.0 (`process_words`, `process_characters`), with the same alignment.
    Differs from: jiwer separates words only at spaces, in all scripts, and its rate for empty references is the number
    of insertions.

    Args:
        alignment: Alignment by which edits of words are counted. Those of characters are always the fewest.

    Raises:
        ValueError: If the numbers of references and hypotheses differ.
    """
    words = count_edits(references, hypotheses, parts=words_of, alignment=alignment)
    characters = count_edits(references, hypotheses, parts=str.strip)
    return np.concatenate((words, characters), axis=1)


def count_edits(
    references: Sequence[str],
    hypotheses: Sequence[str],
    *,
    parts: Callable[[str], Sequence[str]],
    alignment: Alignment = "fewest_edits",
) -> Int64[np.ndarray, "N 4"]:
    """Counts substitutions, deletions, insertions and the reference length of each utterance.

    Args:
        parts: Function that splits a text into the units to count.
    """
    edits = ALIGNMENTS[alignment]
    rows = [
        (0, 0, 0, len(parts(reference))) if reference == hypothesis else edits(parts(reference), parts(hypothesis))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def count_token_errors(
    references: Sequence[Sequence[int]], hypotheses: Sequence[Sequence[int]]
) -> Int64[np.ndarray, "N 4"]:
    """Counts the `TOKEN_EDITS` of each utterance: substitutions, deletions, insertions and the reference length.

    Raises:
        ValueError: If the numbers of references and hypotheses differ.
    """
    rows = [_edits(reference, hypothesis) for reference, hypothesis in zip(references, hypotheses, strict=True)]
    return np.array(rows, np.int64).reshape(-1, 4)


def right_words(reference: Sequence[str], hypothesis: Sequence[str]) -> Bool[np.ndarray, " H"]:
    """Returns for each word of a hypothesis whether it is right, by an alignment with the fewest edits."""
    is_right = np.zeros(len(hypothesis), bool)
    is_right[right_pairs(reference, hypothesis)[:, 1]] = True
    return is_right


def right_pairs(reference: Sequence[str], hypothesis: Sequence[str]) -> Int64[np.ndarray, "P 2"]:
    """Returns the places in both texts of the right words, by the alignment of `right_words`."""
    blocks = Levenshtein.editops(reference, hypothesis).as_matching_blocks()
    pairs = [(block.a + place, block.b + place) for block in blocks for place in range(block.size)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _edits(reference: Sequence[str | int], hypothesis: Sequence[str | int]) -> tuple[int, int, int, int]:
    """Returns substitutions, deletions, insertions and the reference length of an alignment with the fewest edits.

    If there are several such alignments, RapidFuzz chooses one, as in jiwer. RapidFuzz compares 64-bit hashes of the
    units; collisions within an utterance are not expected.
    """
    edits = Levenshtein.editops(reference, hypothesis)
    surplus = len(reference) - len(hypothesis)  # deletions less insertions
    substitutions = len(edits) - abs(surplus)
    # If only one edit is not accounted for by the surplus, it is a substitution: an insertion with a deletion is two.
    if substitutions > 1:
        substitutions = [tag for tag, _, _ in edits.as_list()].count("replace")
    insertions = (len(edits) - substitutions - surplus) // 2
    return substitutions, insertions + surplus, insertions, len(reference)


def _sclite_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Returns substitutions, deletions, insertions and the reference length of sclite's alignment.

    The alignment has the lowest cost, which may have more errors than the fewest: two deletions and two insertions cost
    as much as three substitutions. Of alignments with equal costs, the pair is preferred to the insertion, and the
    insertion to the deletion, from the end of the texts.

    Source: `Network_dpalign` and `wwd_WORD` in sclite's net_dp.c and word.c, SCTK at commit 9688a26. Differs from:
    sclite's alternatives and optionally deletable words, which texts here do not have.
    """
    ids: dict[str, int] = {}
    words, others = (
        np.array([ids.setdefault(word, len(ids)) for word in text], np.int64) for text in (reference, hypothesis)
    )
    paired = SUBSTITUTION * (words[:, None] != others[None])
    inserted = GAP * np.arange(len(others) + 1)
    costs = np.empty((len(words) + 1, len(others) + 1), np.int64)
    costs[0] = inserted
    for row in range(len(words)):
        best = costs[row] + GAP
        np.minimum(best[1:], costs[row, :-1] + paired[row], out=best[1:])
        costs[row + 1] = np.minimum.accumulate(best - inserted) + inserted
    pair, deletion, insertion = costs[:-1, :-1] + paired, costs[:-1, 1:] + GAP, costs[1:, :-1] + GAP
    is_pair, is_deletion = (pair <= deletion) & (pair <= insertion), deletion < insertion
    row, column = len(words), len(others)
    substitutions = deletions = insertions = 0
    while row and column:
        if is_pair[row - 1, column - 1]:
            row, column = row - 1, column - 1
            substitutions += bool(paired[row, column])
        elif is_deletion[row - 1, column - 1]:
            row, deletions = row - 1, deletions + 1
        else:
            column, insertions = column - 1, insertions + 1
    return substitutions, deletions + row, insertions + column, len(words)


ALIGNMENTS: dict[Alignment, Callable[[Sequence[str], Sequence[str]], tuple[int, int, int, int]]] = {
    "fewest_edits": _edits,
    "sclite": _sclite_edits,
}
