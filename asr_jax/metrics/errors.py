"""Word and character edits of utterances, counted once, and the rates that their sums give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from rapidfuzz.distance import Levenshtein

EDITS = (
    "substitutions", "deletions", "insertions", "words",
    "character_substitutions", "character_deletions", "character_insertions", "characters",
)  # fmt: skip
"""Columns of `count_errors`: edits and the length of the reference, in words and in characters."""


@dataclass(frozen=True)
class ErrorCounts:
    """Edits that make hypotheses of references; adds up over utterances."""

    substitutions: int = 0
    deletions: int = 0
    """Reference words that are missing in the hypothesis."""
    insertions: int = 0
    """Hypothesis words that are not in the reference."""
    words: int = 0
    """Words (or characters) of the references."""
    utterances: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def hits(self) -> int:
        """Reference words that were recognised."""
        return self.words - self.substitutions - self.deletions

    @property
    def rate(self) -> float:
        """Errors per reference word: 1 may be exceeded; NaN where the references have no word."""
        return self.errors / self.words if self.words else float("nan")

    @property
    def match_error_rate(self) -> float:
        """Errors per pair of the alignment, in 0..1 (Morris et al. 2004); 0 where both sides are empty."""
        return self.errors / (self.hits + self.errors) if self.errors else 0.0

    @property
    def information_lost(self) -> float:
        """Word information lost (Morris et al. 2004), in 0..1: one less hits² / (reference · hypothesis words); 0 where
        both sides are empty.
        """
        hypothesis_words = self.hits + self.substitutions + self.insertions
        if not self.words or not hypothesis_words:
            return float(self.words != hypothesis_words)
        return 1.0 - self.hits / self.words * (self.hits / hypothesis_words)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.words + other.words,
            self.utterances + other.utterances,
        )


def word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the words, which white space parts, of one utterance."""
    return ErrorCounts(*_edits(reference.split(), hypothesis.split()), utterances=1)


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the characters, inner spaces among them, of one utterance; `words` counts characters."""
    return ErrorCounts(*_edits(reference.strip(), hypothesis.strip()), utterances=1)


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> Int64[np.ndarray, "N 8"]:
    """`EDITS` of each utterance, as `word_errors` and `character_errors` count them.

    Source: jiwer 4.0.0 (`process_words`, `process_characters`), with the same alignment.
    Differs from: jiwer parts words at spaces alone, and counts insertions as the rate of empty references.
    Raises: ValueError where the numbers of texts differ.
    """
    words, characters = (count_edits(references, hypotheses, parts=parts) for parts in (str.split, str.strip))
    return np.concatenate((words, characters), axis=1)


def count_edits(
    references: Sequence[str], hypotheses: Sequence[str], *, parts: Callable[[str], Sequence[str]]
) -> Int64[np.ndarray, "N 4"]:
    """Substitutions, deletions, insertions and reference length of each utterance, in `parts` of its texts."""
    rows = [
        (0, 0, 0, len(parts(reference))) if reference == hypothesis else _edits(parts(reference), parts(hypothesis))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def right_words(reference: Sequence[str], hypothesis: Sequence[str]) -> Bool[np.ndarray, " H"]:
    """Which words of a hypothesis are right, by an alignment with the fewest edits."""
    is_right = np.ones(len(hypothesis), bool)
    for tag, _, place in Levenshtein.editops(reference, hypothesis).as_list():
        if tag != "delete":  # an editop of a missing word names the place before which it is missing
            is_right[place] = False
    return is_right


def _edits(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Substitutions, deletions, insertions and reference length, of an alignment with the fewest edits.

    Which of several such alignments is taken is RapidFuzz's choice, as in jiwer. It compares the words' hashes: of 64
    bits, so that two words of one pair that look alike to it are not to be expected.
    """
    edits = Levenshtein.editops(reference, hypothesis)
    surplus = len(reference) - len(hypothesis)  # deletions less insertions
    substitutions = len(edits) - abs(surplus)
    if substitutions > 1:  # or a deletion and an insertion: one edit beyond the surplus is a substitution in any case
        substitutions = [tag for tag, _, _ in edits.as_list()].count("replace")
    insertions = (len(edits) - substitutions - surplus) // 2
    return substitutions, insertions + surplus, insertions, len(reference)
