"""What every decoder gives: a recording's words with their times and confidence, their score, and other readings."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Word:
    """A word and where it is."""

    text: str
    start_s: float
    """From the recording's beginning."""
    end_s: float
    confidence: float
    """How likely it is right, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Token:
    """A label and where it is."""

    text: str
    """As language models of labels have it: | for a space, ▁ before a piece that begins a word."""
    start_s: float
    end_s: float
    log_prob: float
    """In the likeliest of its frames."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One text of an n-best list."""

    text: str
    score: float
    """A natural logarithm, comparable within the list."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a recording."""

    words: tuple[Word, ...]
    score: float
    """A natural logarithm: of the text's probability and, where a language model or hot words were asked, what they
    add. Comparable between texts of one recording alone."""
    alternatives: tuple[Alternative, ...] = ()
    """The n-best list, the best first: this text is its first. Empty where the decoder makes one text only."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Transcript":
        """The inverse of `dataclasses.asdict`."""
        words = tuple(Word(**word) for word in values["words"])
        return cls(words, values["score"], tuple(Alternative(**each) for each in values["alternatives"]))

    @property
    def text(self) -> str:
        """Its words, parted by single spaces."""
        return " ".join(word.text for word in self.words)

    @property
    def confidence(self) -> float:
        """The mean of its words': the share of them that is likely right; NaN where there are none."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else math.nan


def joined(parts: Iterable[Transcript]) -> Transcript:
    """Of one recording's parts, one after another, which do not overlap. It has no n-best list of its own."""
    parts = list(parts)
    return Transcript(
        words=tuple(word for part in parts for word in part.words), score=math.fsum(part.score for part in parts)
    )


def to_json(transcript: Transcript) -> dict[str, Any]:
    """Its words (text, start_s, end_s, confidence), score, mean confidence (None without words) and alternatives,
    rounded to what they are known to: milliseconds, and four digits.
    """
    words = [
        {"text": word.text, "start_s": round(word.start_s, 3), "end_s": round(word.end_s, 3)}
        | {"confidence": round(word.confidence, 4)}
        for word in transcript.words
    ]
    return {
        "words": words,
        "score": _rounded(transcript.score),
        "confidence": _rounded(transcript.confidence),
        "alternatives": [asdict(each) | {"score": _rounded(each.score)} for each in transcript.alternatives],
    }


def _rounded(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return round(value, 4) if math.isfinite(value) else None
