"""Subtitle cues from the words of a transcript: split at pauses, short enough to read, and shown for long enough.

Differs from: broadcasters' rules split at clauses as well; recognisers without punctuation only have pauses.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from asr_jax.core.settings import NonNegativeFloat, PositiveFloat, PositiveInt, settings
from asr_jax.transcripts.transcript import Transcript, Word, with_valid_times


@settings
class CueRules:
    """Limits of a cue. The defaults are close to the guidelines of the BBC and Netflix."""

    max_chars: PositiveInt = 42
    """Largest width of a line in characters; a wide one, such as 你, counts as two. A longer word has its own line."""
    max_lines: PositiveInt = 2
    """Largest number of lines."""
    max_s: PositiveFloat = 7.0
    """Largest duration of a cue in seconds. A longer word is a cue of its own, which ends before the word."""
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
    """Splits a transcript into cues that do not overlap, for words with any times. Times are in whole milliseconds.

    To reach `min_s`, a cue is not extended beyond the end of the audio.

    Args:
        rules: Limits of a cue. None: the defaults.
        duration_s: Duration of the audio in seconds; NaN if unknown.
    """
    rules = rules or CueRules()
    last_ms = _ms(duration_s) if math.isfinite(duration_s) else sys.maxsize
    groups = list(_groups(with_valid_times(transcript.words, duration_s), rules))
    starts = [_ms(group[0].start_s) for group in groups]
    result = []
    for group, start_ms, next_ms in zip_longest(groups, starts, starts[1:]):
        end_ms = max(_ms(group[-1].end_s), min(start_ms + _ms(rules.min_s), last_ms), start_ms + 1)
        end_ms = min(end_ms, start_ms + max(_ms(rules.max_s), 1))
        if next_ms is not None:
            end_ms = max(min(end_ms, next_ms - _ms(rules.gap_s)), start_ms + 1)
        lines = _lines(group, rules.max_chars)
        result.append(Cue(start_ms / 1000, end_ms / 1000, tuple(lines)))
    return result


def _groups(words: Sequence[Word], rules: CueRules) -> Iterator[list[Word]]:
    """Yields the words of each cue: as many as the limits allow, up to a pause."""
    group: list[Word] = []
    for word in words:
        if group:
            is_full = len(_lines([*group, word], rules.max_chars)) > rules.max_lines
            if is_full or word.end_s - group[0].start_s > rules.max_s or word.start_s - group[-1].end_s > rules.pause_s:
                yield group
                group = []
        group.append(word)
    if group:
        yield group


def _lines(words: Sequence[Word], max_chars: PositiveInt) -> list[str]:
    """Breaks words into as few lines as possible."""
    lines: list[str] = []
    for word in words:
        text = " " * word.space + word.text
        if lines and cell_len(lines[-1] + text) <= max_chars:
            lines[-1] += text
        else:
            lines.append(word.text)
    return lines


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
