"""Transcripts, the output of every decoder: words with times and confidence, score, and n-best list."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its time."""

    text: str
    start_s: float
    """Start in seconds from the start of the recording."""
    end_s: float
    """End in seconds from the start of the recording."""
    confidence: float
    """Estimated probability that the word is right, in 0..1."""


@dataclass(frozen=True, slots=True)
class Token:
    """A label with its time."""

    text: str
    """Text as language models of labels spell it: | for a space, ▁ before a piece that begins a word."""
    start_s: float
    """Start in seconds from the start of the recording."""
    end_s: float
    """End in seconds from the start of the recording."""
    log_prob: float
    """Natural log-probability in the frame where it is largest."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text of an n-best list."""

    text: str
    score: float
    """Natural logarithm, comparable within the list."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a recording."""

    words: tuple[Word, ...]
    score: float
    """Natural logarithm of the text's probability, plus the contributions of a language model and hot words. Only
    comparable between texts of the same recording."""
    n_best: tuple[ScoredText, ...] = ()
    """N-best list, best first, which begins with this text. Empty if the decoder returns only one text."""
    tokens: tuple[int, ...] = ()
    """Label ids of the text."""
    log_probs: tuple[float, ...] = ()
    """Natural logarithm of each label's probability."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Transcript":
        """Returns the transcript of a dict that `dataclasses.asdict` made."""
        words = tuple(Word(**word) for word in values["words"])
        n_best = tuple(ScoredText(**each) for each in values["n_best"])
        return cls(words, values["score"], n_best, tuple(values["tokens"]), tuple(values["log_probs"]))

    @property
    def text(self) -> str:
        """Words separated by single spaces."""
        return " ".join(word.text for word in self.words)

    @property
    def confidence(self) -> float:
        """Mean confidence of the words, an estimate of the share of right words; NaN without words."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else math.nan


def joined(parts: Iterable[Transcript]) -> Transcript:
    """Joins the transcripts of consecutive parts of a recording that do not overlap. The result has no n-best list."""
    parts = list(parts)
    return Transcript(
        words=tuple(word for part in parts for word in part.words),
        score=math.fsum(part.score for part in parts),
        tokens=tuple(token for part in parts for token in part.tokens),
        log_probs=tuple(each for part in parts for each in part.log_probs),
    )


def to_json(transcript: Transcript) -> dict[str, Any]:
    """Returns words (text, start_s, end_s, confidence), score, mean confidence and the n-best list for JSON.

    Times are rounded to milliseconds, other values to four digits. Values that are not finite, such as the mean
    confidence without words, are None.
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
        "n_best": [asdict(each) | {"score": _rounded(each.score)} for each in transcript.n_best],
    }


def _rounded(value: float) -> float | None:
    """Returns the value with four digits; None for infinity and NaN, which JSON does not have."""
    return round(value, 4) if math.isfinite(value) else None
