"""Subtitle cues from the words of a transcript: split at pauses, short enough to read, and shown for long enough.

Differs from: broadcasters' rules split at clauses as well; recognisers without punctuation only have pauses.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from asr_jax.core.settings import NonNegativeFloat, PositiveFloat, PositiveInt, settings
from asr_jax.transcripts.transcript import Transcript, Word


@settings
class CueRules:
    """Limits of a cue. The defaults are close to the guidelines of the BBC and Netflix."""

    max_chars: PositiveInt = 42
    """Largest number of characters in a line. A longer word has a line of its own."""
    max_lines: PositiveInt = 2
    """Largest number of lines."""
    max_s: PositiveFloat = 7.0
    """Largest duration of a cue in seconds. A longer word is a cue of its own."""
    min_s: PositiveFloat = 1.0
    """Smallest duration of a cue in seconds, unless the next cue begins earlier."""
    pause_s: NonNegativeFloat = 0.8
    """Pause in seconds above which words are in different cues."""
    gap_s: NonNegativeFloat = 0.08
    """Gap between consecutive cues in seconds: two frames of film, which make the change visible."""

    def problems(self) -> Iterator[str]:
        if self.min_s > self.max_s:
            yield f"min_s is {self.min_s}: expected at most max_s, {self.max_s}"


@dataclass(frozen=True)
class Cue:
    """Lines that are shown at the same time."""

    start_s: float
    end_s: float
    lines: tuple[str, ...]


def cues(transcript: Transcript, rules: CueRules | None = None, *, duration_s: float = math.nan) -> list[Cue]:
    """Splits a transcript into cues that do not overlap. Times are in whole milliseconds.

    To reach `min_s`, a cue is not extended beyond the end of the audio.

    Args:
        rules: Limits of a cue. None: the defaults.
        duration_s: Duration of the audio in seconds; NaN if unknown.
    """
    rules = rules or CueRules()
    last_ms = _ms(duration_s) if math.isfinite(duration_s) else sys.maxsize
    groups = list(_groups(transcript.words, rules))
    starts = [_ms(group[0].start_s) for group in groups]
    result = []
    for group, start_ms, next_ms in zip_longest(groups, starts, starts[1:]):
        end_ms = max(_ms(group[-1].end_s), min(start_ms + _ms(rules.min_s), last_ms), start_ms + 1)
        if next_ms is not None:
            # At least one millisecond: two words may begin in the same frame.
            end_ms = max(min(end_ms, next_ms - _ms(rules.gap_s)), min(start_ms + 1, next_ms))
        lines = _lines([word.text for word in group], rules.max_chars)
        result.append(Cue(start_ms / 1000, end_ms / 1000, tuple(lines)))
    return result


def _groups(words: Sequence[Word], rules: CueRules) -> Iterator[list[Word]]:
    """Yields the words of each cue: as many as the limits allow, up to a pause."""
    group: list[Word] = []
    for word in words:
        if group:
            texts = [each.text for each in group] + [word.text]
            is_full = len(_lines(texts, rules.max_chars)) > rules.max_lines
            if is_full or word.end_s - group[0].start_s > rules.max_s or word.start_s - group[-1].end_s > rules.pause_s:
                yield group
                group = []
        group.append(word)
    if group:
        yield group


def _lines(words: Sequence[str], max_chars: PositiveInt) -> list[str]:
    """Breaks words into as few lines as possible."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= max_chars:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
