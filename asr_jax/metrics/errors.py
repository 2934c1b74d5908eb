"""Word and character error rates: edits over reference lengths, both summed before the division."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True)
class ErrorCounts:
    """Edits that make references from hypotheses; adds up over utterances."""

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
    def rate(self) -> float:
        """Errors per reference word: 1 may be exceeded; NaN where the references have no word."""
        return self.errors / self.words if self.words else float("nan")

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
    return _errors([(reference.split(), hypothesis.split())])


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the characters, spaces among them, of one utterance; `words` counts characters."""
    return _errors([(reference, hypothesis)])


def score(references: Sequence[str], hypotheses: Sequence[str], sources: Sequence[str] | None = None) -> dict[str, Any]:
    """Rates and counts of a set: wer, cer, substitutions, deletions, insertions, words, utterances, and the same by
    source. Texts are compared as they are: normalise both before. A rate is None where there are no reference words.

    Raises: ValueError where the numbers of texts or sources differ.
    """
    sources = [""] * len(references) if sources is None else sources
    by_source: dict[str, list[tuple[str, str]]] = {}
    for reference, hypothesis, source in zip(references, hypotheses, sources, strict=True):
        by_source.setdefault(source, []).append((reference, hypothesis))
    words = {source: _errors([(r.split(), h.split()) for r, h in pairs]) for source, pairs in by_source.items()}
    characters = {source: _errors(pairs) for source, pairs in by_source.items()}
    total = _rates(sum(words.values(), ErrorCounts()), sum(characters.values(), ErrorCounts()))
    return total | {"by_source": {source: _rates(words[source], characters[source]) for source in sorted(by_source)}}


def _rates(words: ErrorCounts, characters: ErrorCounts) -> dict[str, Any]:
    return {
        "wer": words.rate if words.words else None,
        "cer": characters.rate if characters.words else None,
        "substitutions": words.substitutions,
        "deletions": words.deletions,
        "insertions": words.insertions,
        "words": words.words,
        "utterances": words.utterances,
    }


def _errors(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> ErrorCounts:
    """Edits of an alignment with the fewest, of pairs of reference and hypothesis.

    Which of several such alignments is taken is RapidFuzz's choice, as in jiwer. It compares the words' hashes: of 64
    bits, so that two words of one pair that look alike to it are not to be expected.
    """
    counts = {"replace": 0, "delete": 0, "insert": 0}
    for reference, hypothesis in pairs:
        if reference != hypothesis:
            for edit in Levenshtein.editops(reference, hypothesis):
                counts[edit.tag] += 1
    num_words = sum(len(reference) for reference, _ in pairs)
    return ErrorCounts(counts["replace"], counts["delete"], counts["insert"], num_words, len(pairs))
