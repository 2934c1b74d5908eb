"""Transcripts, the output of every decoder: words with times and confidence, score, and n-best list."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from asr_jax.text import segmentation


def apart(
    spans: Sequence[tuple[float, float]], *, tick_s: float, last_s: float = math.inf
) -> list[tuple[float, float]]:
    """Returns times of consecutive words that are in order and do not overlap. Valid times only change by rounding.

    Decoders can write several words in the same frame: these share its time. Words that begin before the word before
    them begin after it.

    Args:
        spans: Start and end of each word in seconds, in the order of the text. Any numbers are allowed, and those that
            are not finite are ignored.
        tick_s: Unit of the results in seconds, and their smallest length.
        last_s: End of the audio in seconds; NaN or infinity if it is unknown. If the audio is shorter than a tick for
            each word, later words end after it.
    """
    if not spans:
        return []
    num, per_s = len(spans), round(1 / tick_s)
    last = max(round(last_s * per_s), num) if math.isfinite(last_s) else None
    starts, ends = list[int](), list[int]()
    for start_s, end_s in spans:
        before = starts[-1] if starts else 0
        start = max(round(start_s * per_s), before) if math.isfinite(start_s) else before
        starts.append(start if last is None else min(start, last))
        ends.append(max(round(end_s * per_s), starts[-1]) if math.isfinite(end_s) else starts[-1])
    first = 0
    for start, group in groupby(starts.copy()):
        size = len(list(group))
        stop = max(ends[first : first + size])
        stop = min([stop, *starts[first + size : first + size + 1]])
        for place in range(size):
            starts[first + place] = start + (stop - start) * place // size
        first += size
    for place in range(1, num):
        starts[place] = max(starts[place], starts[place - 1] + 1)
    limit = last if last is not None else max(starts[-1] + 1, ends[-1])
    for place in reversed(range(num)):
        starts[place] = min(starts[place], limit - 1)
        ends[place] = min(max(ends[place], starts[place] + 1), limit)
        limit = starts[place]
    return [(start / per_s, end / per_s) for start, end in zip(starts, ends, strict=True)]


MS = 0.001
"""Unit of times in files in seconds."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its time: what stands between spaces, or a word of `text.segmentation` in scripts without spaces."""

    text: str
    start_s: float
    """Start in seconds from the start of the recording."""
    end_s: float
    """End in seconds from the start of the recording."""
    confidence: float
    """Estimated probability that the word is right, in 0..1."""
    space: bool = True
    """Whether a space precedes the word in the text. It does not matter for the first word."""
    emitted_s: float | None = field(default=None, compare=False)
    """End of the frame in which the search emitted the word's last label, in seconds from the start of the recording.
    It is before `end_s` if the label has several frames. None: unknown. Comparisons of words ignore it."""


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
    """Natural logarithm of each label's probability; in a transducer's beam search, among all labels but the blank."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Transcript":
        """Returns the transcript of a dict that `dataclasses.asdict` made."""
        words = tuple(Word(**word) for word in values["words"])
        n_best = tuple(ScoredText(**each) for each in values["n_best"])
        return cls(words, values["score"], n_best, tuple(values["tokens"]), tuple(values["log_probs"]))

    @property
    def text(self) -> str:
        """The words, with single spaces between them in scripts with spaces."""
        return segmentation.joined(self.words)

    @property
    def confidence(self) -> float:
        """Mean confidence of the words, an estimate of the share of right words; NaN without words."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else math.nan


def joined(parts: Iterable[Transcript]) -> Transcript:
    """Joins the transcripts of consecutive parts of a recording that do not overlap. The result has no n-best list.

    Parts are joined with a space, except beside letters of scripts without spaces.
    """
    parts, words = list(parts), list[Word]()
    for first, *others in (part.words for part in parts if part.words):
        before = words[-1].text if words else ""
        words += [replace(first, space=not segmentation.may_follow(before, first.text)), *others]
    return Transcript(
        words=tuple(words),
        score=math.fsum(part.score for part in parts),
        tokens=tuple(token for part in parts for token in part.tokens),
        log_probs=tuple(each for part in parts for each in part.log_probs),
    )


def with_valid_times[Timed: (Word, Token)](
    items: Sequence[Timed], duration_s: float = math.nan, *, tick_s: float = MS
) -> tuple[Timed, ...]:
    """Returns words or tokens with times in order, without overlap, of a positive length, and within the audio.

    Args:
        duration_s: Duration of the audio in seconds; NaN if unknown.
        tick_s: Unit of the times in seconds.
    """
    times = apart([(item.start_s, item.end_s) for item in items], tick_s=tick_s, last_s=duration_s)
    return tuple(replace(item, start_s=start, end_s=end) for item, (start, end) in zip(items, times, strict=True))


def to_json(transcript: Transcript, duration_s: float = math.nan) -> dict[str, Any]:
    """Returns words (text, start_s, end_s, confidence), score, mean confidence and the n-best list for JSON.

    A word that follows the word before it without a space also has `"space": false`. Times
    are whole milliseconds of `with_valid_times`; other values have four digits. Values that are not finite, such as the
    mean confidence without words, are None.

    Args:
        duration_s: Duration of the audio in seconds; NaN if unknown.
    """
    words = [
        {"text": word.text, "start_s": word.start_s, "end_s": word.end_s}
        | {"confidence": round(word.confidence, 4)}
        | ({} if word.space or not place else {"space": False})
        for place, word in enumerate(with_valid_times(transcript.words, duration_s))
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
