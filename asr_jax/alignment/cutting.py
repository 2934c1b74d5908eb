"""Long audio with the times of its words, cut at pauses into pieces that are sure, and others that are not."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from asr_jax.alignment.ctc_segment import LongPath
from asr_jax.transcripts.pauses import stretches

FOREIGN = "speech that is not in the text"
UNHEARD = "text that was not heard"
ALONE = "few words between others that are not sure"
NO_PAUSE = "no pause for too long"
LOW_SCORE = "score"


@dataclass(frozen=True)
class Cutting:
    """Where pieces begin and end, and which are sure."""

    max_s: float = 20.0
    """Of a piece."""
    min_pause_s: float = 0.16
    """Shorter times between two words are not cut in."""
    max_pause_s: float = 2.0
    """Longer ones always are."""
    margin_s: float = 1.0
    """At most so much is kept before the first word and after the last one: CTC's labels are shorter than words."""
    min_words: int = 3
    """Beside what is not sure, fewer words are not sure either: they may be heard where they are not said."""
    score_s: float = 0.75
    """A piece's score is the mean log-probability of a frame of the path in that part of it, so long, where it is
    lowest (ctc-segmentation: 30 indices of 0.025 s)."""
    min_score: float = -0.3
    """Pieces below are not sure. One wrong digit gives about -0.4 (BUILD_NOTES.md)."""

    def __post_init__(self) -> None:
        if not 0 < self.min_pause_s <= self.max_pause_s:
            raise ValueError(f"min_pause_s {self.min_pause_s}, max_pause_s {self.max_pause_s}: expected 0 < min ≤ max")
        if not (self.max_s > 0 and self.margin_s >= 0 and self.score_s > 0):
            raise ValueError(
                f"max_s {self.max_s}, margin_s {self.margin_s}, score_s {self.score_s}: expected more than 0"
            )


class TextWord(NamedTuple):
    """A word of the text as it stands there, and its labels by place."""

    text: str
    first: int
    end: int
    problem: str = ""
    """Why it has no labels."""


class Piece(NamedTuple):
    """A part of the audio and of the text, in frames."""

    start: float
    end: float
    text: str
    score: float
    """NaN where no word of it is sure to be heard."""
    reasons: tuple[str, ...] = ()
    """Why it is not sure; none where it is."""


class _Item(NamedTuple):
    """A word, or what there is in the place of words."""

    start: int
    end: int
    text: str
    reason: str = ""


def pieces(
    words: Sequence[TextWord], path: LongPath, energies: Float[np.ndarray, " T"], cutting: Cutting, *, shift_s: float
) -> list[Piece]:
    """All of the text in its order, sure or not. `energies`: of each frame; `shift_s`: seconds of a frame.

    Words between two pauses stay together. What a pause does not part from foreign speech, or from words that were not
    heard, is as unsure as these.
    """
    phrases = _without_few(_phrases(list(_items(words, path)), cutting, shift_s), cutting)
    groups = list(_groups(phrases, cutting, shift_s))
    margin, num_frames = cutting.margin_s / shift_s, len(energies)
    found = []
    for number, group in enumerate(groups):
        before = groups[number - 1][-1].end if number else 0
        after = groups[number + 1][0].start if number + 1 < len(groups) else num_frames
        first, last = group[0].start, group[-1].end
        start = max(_quietest(energies, before, first), first - margin) if number else max(first - margin, 0)
        is_last = number + 1 == len(groups)
        end = min(last + margin, num_frames if is_last else _quietest(energies, last, after))
        found.append(_piece(group, max(start, 0), max(end, start), path, cutting, shift_s))
    return found


def _items(words: Sequence[TextWord], path: LongPath) -> Iterator[_Item]:
    """Words that were heard, runs of others between them, and foreign speech, by time."""
    missing: list[TextWord] = []
    at = 0
    for word in words:
        starts = path.starts[word.first : word.end]
        if word.problem or (starts < 0).any():
            missing.append(word)
            continue
        yield from _between(missing, at, int(starts[0]), path)
        missing, at = [], int(path.ends[word.end - 1])
        yield _Item(int(starts[0]), at, word.text)
    yield from _between(missing, at, len(path.is_foreign), path)


def _between(missing: Sequence[TextWord], start: int, end: int, path: LongPath) -> Iterator[_Item]:
    """What there is between two words: one item at most."""
    foreign = start + np.flatnonzero(path.is_foreign[start:end])
    problems = [word.problem for word in missing if word.problem]
    heard_as = problems[:1] or [UNHEARD] * bool(missing)
    text = " ".join(word.text for word in missing)
    if len(foreign):
        yield _Item(int(foreign[0]), int(foreign[-1]) + 1, text, (heard_as or [FOREIGN])[0])
    elif missing:
        middle = (start + end) // 2
        yield _Item(middle, middle, text, heard_as[0])


def _phrases(items: Sequence[_Item], cutting: Cutting, shift_s: float) -> list[list[_Item]]:
    """What lies between two pauses."""
    phrases: list[list[_Item]] = []
    for item in items:
        if phrases and (item.start - phrases[-1][-1].end) * shift_s < cutting.min_pause_s:
            phrases[-1].append(item)
        else:
            phrases.append([item])
    return phrases


def _without_few(phrases: Sequence[list[_Item]], cutting: Cutting) -> list[list[_Item]]:
    """The same, where few words stand beside what is not sure with a reason for that."""
    runs = [list(run) for _, run in itertools.groupby(phrases, key=_is_unsure)]
    found: list[list[_Item]] = []
    for run in runs:
        num_words = sum(map(len, run))
        if len(runs) > 1 and not _is_unsure(run[0]) and num_words < cutting.min_words:
            run = [[item._replace(reason=ALONE) for item in phrase] for phrase in run]
        found += run
    return found


def _groups(phrases: Sequence[list[_Item]], cutting: Cutting, shift_s: float) -> Iterator[list[_Item]]:
    """Neighbouring phrases of one kind, as many as a piece has room for."""
    max_s = cutting.max_s
    limits = {"least": max_s / 2, "most": max_s - 2 * cutting.margin_s, "max_pause": cutting.max_pause_s}
    in_frames = {name: seconds / shift_s for name, seconds in limits.items()}
    for _, run in itertools.groupby(phrases, key=_is_unsure):
        alike = list(run)
        for part in stretches([(phrase[0].start, phrase[-1].end) for phrase in alike], **in_frames):
            yield [item for phrase in alike[part] for item in phrase]


def _is_unsure(phrase: Sequence[_Item]) -> bool:
    return any(item.reason for item in phrase)


def _quietest(energies: Float[np.ndarray, " T"], start: int, end: int) -> float:
    """The middle of the longest quiet part between two frames: where the mean of three is within 3 dB of the least."""
    if end - start < 2:
        return (start + end) / 2
    around = np.pad(energies, 1, mode="edge")[start : end + 2]
    smooth = np.convolve(around, np.full(3, 1 / 3), mode="valid")
    is_loud = np.concatenate([[True], smooth > 2 * smooth.min(), [True]])
    borders = np.flatnonzero(is_loud)
    longest = int(np.diff(borders).argmax())
    return start + float(borders[longest] + borders[longest + 1] - 1) / 2


def _piece(group: Sequence[_Item], start: float, end: float, path: LongPath, cutting: Cutting, shift_s: float) -> Piece:
    text = " ".join(item.text for item in group if item.text)
    reasons = list(dict.fromkeys(item.reason for item in group if item.reason))
    score = _score(path.log_probs[int(start) : math.ceil(end)], max(round(cutting.score_s / shift_s), 1))
    if all(item.reason for item in group):
        return Piece(start, end, text, math.nan, tuple(reasons))
    if (end - start) * shift_s > cutting.max_s:
        reasons.append(NO_PAUSE)
    if score < cutting.min_score:
        reasons.append(LOW_SCORE)
    return Piece(start, end, text, score, tuple(reasons))


def _score(log_probs: Float[np.ndarray, " T"], window: int) -> float:
    if len(log_probs) <= window:
        return float(log_probs.mean()) if len(log_probs) else math.nan
    sums = np.concatenate([[0.0], np.cumsum(log_probs, dtype=np.float64)])
    return float((sums[window:] - sums[:-window]).min() / window)
