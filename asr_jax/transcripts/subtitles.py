"""Cues of subtitles from the words of a transcript: broken at pauses, short enough to read, shown long enough.

Differs from: broadcasters' rules, which want borders of clauses; a recogniser without punctuation has pauses alone.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from asr_jax.core.errors import check_numbers
from asr_jax.transcripts.transcript import Transcript, Word


@dataclass(frozen=True)
class CueRules:
    """What a cue may be. The values are about those of the BBC's and Netflix's guidelines."""

    max_chars: int = 42
    """Of a line; a longer word has a line of its own."""
    max_lines: int = 2
    max_s: float = 7.0
    """A cue is shown no longer; a longer word is a cue of its own."""
    min_s: float = 1.0
    """A cue is shown at least so long, where the next leaves time for it."""
    pause_s: float = 0.8
    """Words that are further apart are in different cues."""
    gap_s: float = 0.08
    """Between cues where words follow each other at once: two frames of film, so that the change is seen."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_chars", "max_lines", least=1)
        check_numbers(self, "max_s", "min_s", above=0)
        check_numbers(self, "pause_s", "gap_s", least=0)
        if self.min_s > self.max_s:
            raise ValueError(f"min_s is {self.min_s} and max_s {self.max_s}: expected min_s ≤ max_s")


@dataclass(frozen=True)
class Cue:
    """Lines that are shown together."""

    start_s: float
    end_s: float
    lines: tuple[str, ...]


def cues(transcript: Transcript, rules: CueRules | None = None, *, duration_s: float = math.nan) -> list[Cue]:
    """All words in order, in cues that do not overlap, with times in whole milliseconds. None is shown for longer than
    its words behind the end of the audio, `duration_s` where it is known.
    """
    rules = rules or CueRules()
    last_ms = _ms(duration_s) if math.isfinite(duration_s) else sys.maxsize
    groups = list(_groups(transcript.words, rules))
    starts = [_ms(group[0].start_s) for group in groups]
    result = []
    for group, start_ms, next_ms in zip_longest(groups, starts, starts[1:]):
        end_ms = max(_ms(group[-1].end_s), min(start_ms + _ms(rules.min_s), last_ms), start_ms + 1)
        if next_ms is not None:
            # At least a millisecond: words may begin in the same frame.
            end_ms = max(min(end_ms, next_ms - _ms(rules.gap_s)), min(start_ms + 1, next_ms))
        lines = _lines([word.text for word in group], rules.max_chars)
        result.append(Cue(start_ms / 1000, end_ms / 1000, tuple(lines)))
    return result


def _groups(words: Sequence[Word], rules: CueRules) -> Iterator[list[Word]]:
    """The words of each cue: as many as there is room and time for, up to a pause."""
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


def _lines(words: Sequence[str], max_chars: int) -> list[str]:
    """The words in as few lines as they fit, each filled before the next begins."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= max_chars:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
