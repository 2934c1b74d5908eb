"""Joins the results of overlapping windows to one sequence of frames or tokens.

In the overlap of two windows, frames before the seam are taken from the first window and the others from the second.
The seam is near the middle of the overlap, far from the edges of both windows. Labels that both windows contain are on
the same side of the seam in both, because a label that the windows place on different sides would be doubled or lost.
Positions among blanks are preferred.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.timed_tokens import TokenSequence

SEAM_SHARE = 1 / 3
"""Share of the overlap, in its middle, in which the seam may be."""
SURE_FRAMES = 10
"""Number of equal frames on either side of a seam above which it is not considered better."""
FAR_FRAMES = 10
"""Distance in frames above which equal labels of two windows are considered different occurrences."""


NOTHING = -1
"""Symbol of frames without a token."""


class FramePath(NamedTuple):
    """The symbols of consecutive frames."""

    first_frame: int
    """First frame, as a frame number of the recording."""
    symbols: Int[np.ndarray, " T"]

    @property
    def end_frame(self) -> int:
        return self.first_frame + len(self.symbols)

    def between(self, first: int, end: int) -> Int[np.ndarray, " T"]:
        """Returns the symbols of frames `first` to `end` (exclusive), as frame numbers of the recording."""
        return self.symbols[first - self.first_frame : end - self.first_frame]


class FrameLogProbs(NamedTuple):
    """CTC log-probabilities of consecutive frames."""

    first_frame: int
    """First frame, as a frame number of the recording."""
    path: Int[np.ndarray, " T"]
    """Most likely symbol of each frame."""
    logps: Float[np.ndarray, "T *V"]
    """Log-probabilities of the path's symbols [T], or of all symbols [T V]."""

    @property
    def end_frame(self) -> int:
        return self.first_frame + len(self.path)

    def between(self, first: int, end: int) -> "FrameLogProbs":
        """Returns frames `first` to `end` (exclusive), as frame numbers of the recording."""
        part = slice(first - self.first_frame, end - self.first_frame)
        return FrameLogProbs(first, self.path[part], self.logps[part])


class WindowPart(NamedTuple):
    """Tokens that a search found in consecutive frames."""

    first_frame: int
    """First frame, as a frame number of the recording."""
    end_frame: int
    """Frame after the last one."""
    tokens: TokenSequence
    """Tokens, with frame numbers of the recording."""

    def between(self, first: int, end: int) -> "WindowPart":
        """Returns the tokens that begin in, or extend into, frames `first` to `end` (exclusive), cut to them."""
        kept = [
            (token, max(start, first), min(stop, end), logp)
            for token, start, stop, logp in self.rows()
            if start < end and (start >= first or stop > first)
        ]
        return WindowPart(first, end, sequence_of(kept, self.tokens.score))

    def rows(self) -> Iterable[tuple[int, int, int, float]]:
        """Returns token, start, end and log-probability of each token."""
        return zip(self.tokens.tokens, self.tokens.starts, self.tokens.ends, self.tokens.log_probs, strict=True)

    def path(self) -> FramePath:
        """Returns the token of each frame, or `NOTHING`."""
        first = self.first_frame
        symbols = np.full(self.end_frame - first, NOTHING, np.int64)
        for token, start, stop, _ in self.rows():
            symbols[max(start - first, 0) : max(max(stop, start + 1) - first, 0)] = token
        return FramePath(first, symbols)


def sequence_of(rows: Sequence[tuple[int, int, int, float]], score: float) -> TokenSequence:
    """Returns a sequence from token, start, end and log-probability of each token."""
    tokens, starts, ends, logps = zip(*rows, strict=True) if rows else ((), (), (), ())
    return TokenSequence(tokens, starts, ends, logps, score)


def joined_parts(windows: Iterable[WindowPart]) -> TokenSequence:
    """Joins the tokens of consecutive windows of a recording.

    A token that a seam cuts, and that continues in the next window, is one token. The score is the sum of the windows'
    scores, each multiplied by the share of its frames that are used.
    """
    rows: list[tuple[int, int, int, float]] = []
    score, before, is_cut = 0.0, None, False

    def keep(window: WindowPart, first: int, end: int) -> float:
        """Adds the tokens of frames `first` to `end` (exclusive) of a window. Returns its share of the score."""
        found = list(window.between(first, end).rows())
        if is_cut and rows and found and rows[-1][0] == found[0][0] and rows[-1][2] == found[0][1]:
            token, start, _, logp = rows.pop()
            found[0] = (token, start, found[0][2], max(logp, found[0][3]))
        rows.extend(found)
        return window.tokens.score * (end - first) / max(window.end_frame - window.first_frame, 1)

    first = 0
    for window in windows:
        if before is None:
            first = window.first_frame
        else:
            cut = max(seam(before.path(), window.path(), blank_id=NOTHING), first)
            score += keep(before, first, cut)
            first = cut
            is_cut = any(start < cut < end for each in (before, window) for _, start, end, _ in each.rows())
        before = window
    if before:
        score += keep(before, first, before.end_frame)
    return sequence_of(rows, score)


def together(parts: Iterable[FrameLogProbs]) -> FrameLogProbs:
    """Concatenates all frames of a recording."""
    parts = list(parts)
    return FrameLogProbs(
        parts[0].first_frame,
        np.concatenate([part.path for part in parts]),
        np.concatenate([part.logps for part in parts]),
    )


def joined_windows(windows: Iterable[FrameLogProbs], *, blank_id: int) -> Iterator[FrameLogProbs]:
    """Joins consecutive windows of a recording. Yields the frames that each window contributes."""
    before: FrameLogProbs | None = None
    for window in windows:
        if before:
            paths = (FramePath(each.first_frame, each.path) for each in (before, window))
            cut = seam(*paths, blank_id=blank_id)
            yield before.between(before.first_frame, cut)
            window = window.between(cut, window.end_frame)
        before = window
    if before:
        yield before


def seam(left: FramePath, right: FramePath, *, blank_id: int) -> int:
    """Returns the frame of the recording from which on `right` is used.

    Candidates are the frames in the middle of the overlap. The criteria, in this order, are: fewest labels that are
    before the seam in one window and after it in the other; most frames on both sides in which both windows have the
    same symbols (up to SURE_FRAMES); most of these that are blanks; smallest distance to the middle.

    Args:
        left: Symbols of the first window.
        right: Symbols of the second window.
    """
    middle = (right.first_frame + left.end_frame) / 2
    reach = (left.end_frame - right.first_frame) * SEAM_SHARE / 2
    first, end = max(left.first_frame, right.first_frame), min(left.end_frame, right.end_frame)
    if end <= first:  # an earlier seam has used up the left window, or the windows only touch
        return first
    ours, theirs = left.between(first, end), right.between(first, end)
    is_same = ours == theirs
    lowest = min(max(int(middle - reach), first), end - 1)
    cuts = np.arange(lowest, max(min(int(middle + reach) + 1, end), lowest + 1))
    near = slice(max(cuts[0] - first - FAR_FRAMES, 0), cuts[-1] - first + 1 + FAR_FRAMES)
    crossed = _crossed(ours[near], theirs[near], blank_id)[cuts - first - near.start]
    same = np.minimum(_margins(is_same)[cuts - first], SURE_FRAMES)
    quiet = np.minimum(_margins(is_same & (ours == blank_id))[cuts - first], SURE_FRAMES)
    return int(cuts[np.lexsort((np.abs(cuts - middle), -quiet, -same, crossed))[0]])


def _crossed(ours: Int[np.ndarray, " T"], theirs: Int[np.ndarray, " T"], blank_id: int) -> Int[np.ndarray, " T"]:
    """Returns for a cut before each frame how many common labels are on different sides of it in the two windows."""
    change = np.zeros(len(ours) + 1, int)
    for pair in _paired(_labels(ours, blank_id), _labels(theirs, blank_id)):
        change[min(pair) + 1] += 1
        change[max(pair) + 1] -= 1
    return np.cumsum(change)[:-1]


def _paired(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs equal labels of both windows in order: as many as possible, then the closest. Returns pairs of frames."""
    best: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])] * (len(theirs) + 1)
    for label, frame in ours:
        above, best = best, best[:1]
        for place, (other, their_frame) in enumerate(theirs):
            found = max(above[place + 1], best[place], key=lambda each: each[0])
            far = abs(frame - their_frame)
            if label == other and far <= FAR_FRAMES:
                value, pairs = above[place]
                if value + 1 - far / 1000 > found[0]:
                    found = (value + 1 - far / 1000, [*pairs, (frame, their_frame)])
            best.append(found)
    return best[-1][1]


def _labels(path: Int[np.ndarray, " T"], blank_id: int) -> list[tuple[int, int]]:
    """Returns the labels of a path and the frames in which they begin."""
    begins = np.flatnonzero((path != blank_id) & np.append(True, path[1:] != path[:-1]))
    return list(zip(path[begins].tolist(), begins.tolist(), strict=True))


def _margins(is_so: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns the number of consecutive True frames directly before and after a cut, whichever is smaller.

    Element t is for the cut before frame t.
    """
    frames = np.arange(len(is_so))
    last_not = np.maximum.accumulate(np.where(is_so, -1, frames))
    next_not = np.minimum.accumulate(np.where(is_so, len(is_so), frames)[::-1])[::-1]
    before = frames - 1 - np.concatenate([[-1], last_not[:-1]])
    return np.minimum(before, next_not - frames)
