"""Segmentation of aligned long audio: it is cut at pauses into reliable pieces and unreliable ones."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from asr_jax.alignment.ctc_segment import LongPath
from asr_jax.core.settings import NonNegativeFloat, PositiveFloat, settings
from asr_jax.text.segmentation import joined
from asr_jax.transcripts.pauses import stretches

FOREIGN = "speech that is not in the text"
UNHEARD = "text that is not in the audio"
ALONE = "few words beside unreliable words"
NO_PAUSE = "longer than the limit, without a pause"
LOW_SCORE = "score"


@settings
class Cutting:
    """Settings of the segmentation: limits of pieces, and criteria of reliable ones."""

    max_s: PositiveFloat = 20.0
    """Maximum length of a piece in seconds."""
    min_pause_s: PositiveFloat = 0.16
    """Minimum length in seconds of a pause that may be cut."""
    max_pause_s: PositiveFloat = 2.0
    """Length in seconds above which a pause is always cut."""
    margin_s: NonNegativeFloat = 1.0
    """Maximum length in seconds that is kept before the first word and after the last one, because CTC's labels are
    shorter than words."""
    min_words: int = 3
    """Minimum number of words in a reliable run beside an unreliable part. Shorter runs are unreliable too, because
    they may be aligned to other speech."""
    score_s: PositiveFloat = 0.75
    """Length of the score's window in seconds. A piece's score is the lowest mean log-probability per frame of its
    windows (ctc-segmentation: 30 indices of 0.025 s)."""
    min_score: float = -0.3
    """Minimum score of a reliable piece. One wrong digit has a score of about -0.4 (BUILD_NOTES.md)."""

    def problems(self) -> Iterator[str]:
        if self.min_pause_s > self.max_pause_s:
            yield f"min_pause_s is {self.min_pause_s}: expected at most max_pause_s, {self.max_pause_s}"


class TextWord(NamedTuple):
    """Word of the text and the range of its labels."""

    text: str
    first: int
    """Index of the first label."""
    end: int
    """Index after the last label."""
    problem: str = ""
    """Reason for which the word has no labels; empty if it has labels."""
    space: bool = True
    """Whether a space precedes the word in the text."""


class Piece(NamedTuple):
    """Part of the audio with its text."""

    start: float
    """Start in frames."""
    end: float
    """End in frames."""
    text: str
    score: float
    """Lowest mean log-probability per frame of a window; NaN if every word is unreliable."""
    reasons: tuple[str, ...] = ()
    """Reasons for which the piece is unreliable; empty if it is reliable."""


class _Item(NamedTuple):
    """Word, or speech or text between two words that could not be aligned."""

    start: int
    end: int
    text: str
    reason: str = ""
    """Reason for which the item is unreliable; empty for an aligned word."""
    space: bool = True
    """Whether a space precedes the item in the text."""


def pieces(
    words: Sequence[TextWord], path: LongPath, energies: Float[np.ndarray, " T"], cutting: Cutting, *, shift_s: float
) -> list[Piece]:
    """Returns reliable and unreliable pieces, which together contain the whole text in its order.

    Words between two pauses stay together. Words that no pause separates from foreign speech or from words without an
    alignment are unreliable too.

    Args:
        path: Alignment of the text's labels.
        energies: Energy of each frame.
        shift_s: Hop between two frames in seconds.
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
    """Yields aligned words, runs of words without an alignment, and foreign speech, in the order of time."""
    missing: list[TextWord] = []
    at = 0
    for word in words:
        starts = path.starts[word.first : word.end]
        if word.problem or (starts < 0).any():
            missing.append(word)
            continue
        yield from _between(missing, at, int(starts[0]), path)
        missing, at = [], int(path.ends[word.end - 1])
        yield _Item(int(starts[0]), at, word.text, space=word.space)
    yield from _between(missing, at, len(path.is_foreign), path)


def _between(missing: Sequence[TextWord], start: int, end: int, path: LongPath) -> Iterator[_Item]:
    """Yields the unaligned text and the foreign speech between two aligned words, as one item at most."""
    foreign = start + np.flatnonzero(path.is_foreign[start:end])
    problems = [word.problem for word in missing if word.problem]
    reasons = problems[:1] or [UNHEARD] * bool(missing)
    text, space = joined(missing), all(word.space for word in missing[:1])
    if len(foreign):
        yield _Item(int(foreign[0]), int(foreign[-1]) + 1, text, (reasons or [FOREIGN])[0], space)
    elif missing:
        middle = (start + end) // 2
        yield _Item(middle, middle, text, reasons[0], space)


def _phrases(items: Sequence[_Item], cutting: Cutting, shift_s: float) -> list[list[_Item]]:
    """Returns the phrases, which are the items between two pauses."""
    phrases: list[list[_Item]] = []
    for item in items:
        if phrases and (item.start - phrases[-1][-1].end) * shift_s < cutting.min_pause_s:
            phrases[-1].append(item)
        else:
            phrases.append([item])
    return phrases


def _without_few(phrases: Sequence[list[_Item]], cutting: Cutting) -> list[list[_Item]]:
    """Returns the phrases, with the reason `ALONE` for short runs of words beside unreliable phrases."""
    runs = [list(run) for _, run in itertools.groupby(phrases, key=_is_unsure)]
    found: list[list[_Item]] = []
    for run in runs:
        num_words = sum(map(len, run))
        if len(runs) > 1 and not _is_unsure(run[0]) and num_words < cutting.min_words:
            run = [[item._replace(reason=ALONE) for item in phrase] for phrase in run]
        found += run
    return found


def _groups(phrases: Sequence[list[_Item]], cutting: Cutting, shift_s: float) -> Iterator[list[_Item]]:
    """Yields groups of consecutive phrases that form a piece; all phrases of a group are reliable, or none is."""
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
    """Returns the middle of the longest quiet part between two frames.

    A frame is quiet if the mean energy of three frames around it is within 3 dB of the minimum.
    """
    if end - start < 2:
        return (start + end) / 2
    around = np.pad(energies, 1, mode="edge")[start : end + 2]
    smooth = np.convolve(around, np.full(3, 1 / 3), mode="valid")
    is_loud = np.concatenate([[True], smooth > 2 * smooth.min(), [True]])
    borders = np.flatnonzero(is_loud)
    longest = int(np.diff(borders).argmax())
    return start + float(borders[longest] + borders[longest + 1] - 1) / 2


def _piece(group: Sequence[_Item], start: float, end: float, path: LongPath, cutting: Cutting, shift_s: float) -> Piece:
    text = joined(item for item in group if item.text)
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
