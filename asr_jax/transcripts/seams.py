"""From the frames of overlapping windows to one sequence.

Where two windows overlap, the frames of the first count up to the seam and those of the second from there. The seam
lies near the middle of the overlap, far from the ends of both, where every symbol that both have found is on one side
of it for both, so that none is doubled or lost where they place it differently, and best of all among blanks.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.timed_tokens import TokenSequence

SEAM_SHARE = 1 / 3
"""Of an overlap, in its middle: where the seam may lie."""
SURE_FRAMES = 10
"""Frames on which both windows agree, on either side of a seam; more are no better."""
FAR_FRAMES = 10
"""Equal labels of two windows that are further apart are not the same one."""


NOTHING = -1
"""In the place of a token, in frames that have none."""


class FramePath(NamedTuple):
    """The symbol of each of consecutive frames."""

    first_frame: int
    """Of the recording."""
    symbols: Int[np.ndarray, " T"]

    @property
    def end_frame(self) -> int:
        return self.first_frame + len(self.symbols)

    def between(self, first: int, end: int) -> Int[np.ndarray, " T"]:
        """The symbols from frame `first` to before `end`, as the recording counts them."""
        return self.symbols[first - self.first_frame : end - self.first_frame]


class FrameLogProbs(NamedTuple):
    """Log-probabilities of CTC of consecutive frames."""

    first_frame: int
    """Of the recording."""
    path: Int[np.ndarray, " T"]
    """The most probable symbol of each frame."""
    logps: Float[np.ndarray, "T *V"]
    """Log-probabilities: of the path's symbols, or of all."""

    @property
    def end_frame(self) -> int:
        return self.first_frame + len(self.path)

    def between(self, first: int, end: int) -> "FrameLogProbs":
        """The frames from `first` to before `end`, as the recording counts them."""
        part = slice(first - self.first_frame, end - self.first_frame)
        return FrameLogProbs(first, self.path[part], self.logps[part])


class Part(NamedTuple):
    """The tokens that a search found in consecutive frames."""

    first_frame: int
    """Of the recording."""
    end_frame: int
    tokens: TokenSequence
    """Their frames are those of the recording."""

    def between(self, first: int, end: int) -> "Part":
        """Its tokens from frame `first` to before `end`: those that begin there, or reach into it, cut to it."""
        kept = [
            (token, max(start, first), min(stop, end), logp)
            for token, start, stop, logp in self.rows()
            if start < end and (start >= first or stop > first)
        ]
        return Part(first, end, _sequence(kept, self.tokens.score))

    def rows(self) -> Iterable[tuple[int, int, int, float]]:
        """Token, start, end and log-probability of each."""
        return zip(self.tokens.tokens, self.tokens.starts, self.tokens.ends, self.tokens.log_probs, strict=True)

    def path(self) -> FramePath:
        """The token of each frame, `NOTHING` in frames without one."""
        first = self.first_frame
        symbols = np.full(self.end_frame - first, NOTHING, np.int64)
        for token, start, stop, _ in self.rows():
            symbols[max(start - first, 0) : max(max(stop, start + 1) - first, 0)] = token
        return FramePath(first, symbols)


def _sequence(rows: Sequence[tuple[int, int, int, float]], score: float) -> TokenSequence:
    tokens, starts, ends, logps = zip(*rows, strict=True) if rows else ((), (), (), ())
    return TokenSequence(tokens, starts, ends, logps, score)


def joined_parts(windows: Iterable[Part]) -> TokenSequence:
    """The tokens of the windows of one recording, in order, each once. A token that is cut by a seam, and goes on
    behind it in the next window, is one. The score is the sum of the windows' scores, each times the share of its
    frames that are kept.
    """
    rows: list[tuple[int, int, int, float]] = []
    score, before, is_cut = 0.0, None, False

    def keep(window: Part, first: int, end: int) -> float:
        """Adds the tokens of a window from one frame to before another; gives its share of the score."""
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
    return _sequence(rows, score)


def together(parts: Iterable[FrameLogProbs]) -> FrameLogProbs:
    """All frames of a recording at once."""
    parts = list(parts)
    return FrameLogProbs(
        parts[0].first_frame, np.concatenate([part.path for part in parts]),
        np.concatenate([part.logps for part in parts]),
    )  # fmt: skip


def joined_windows(windows: Iterable[FrameLogProbs], *, blank_id: int) -> Iterator[FrameLogProbs]:
    """Of the windows of one recording, in order: the frames that count, each once, a part per window."""
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
    """The frame of the recording from which on `right` counts.

    Within the middle of the overlap: where no label lies before it in one window and behind it in the other, then where
    both have the same symbols on the most frames to either side (up to SURE_FRAMES count), then where these are blanks,
    then nearest to the middle.
    """
    middle = (right.first_frame + left.end_frame) / 2
    reach = (left.end_frame - right.first_frame) * SEAM_SHARE / 2
    first, end = max(left.first_frame, right.first_frame), min(left.end_frame, right.end_frame)
    if end <= first:  # of the left one nothing is left, or the windows only touch
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
    """How many labels a cut before each frame would double or lose: those that both have, on different sides of it."""
    change = np.zeros(len(ours) + 1, int)
    for pair in _paired(_labels(ours, blank_id), _labels(theirs, blank_id)):
        change[min(pair) + 1] += 1
        change[max(pair) + 1] -= 1
    return np.cumsum(change)[:-1]


def _paired(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The frames of labels that are the same in both: as many pairs in order as there can be, and then the nearest."""
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
    """The labels of a path with the frames in which they begin."""
    begins = np.flatnonzero((path != blank_id) & np.append(True, path[1:] != path[:-1]))
    return list(zip(path[begins].tolist(), begins.tolist(), strict=True))


def _margins(is_so: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Before each frame: on how many frames it is so without a break, on the side where these are fewer."""
    frames = np.arange(len(is_so))
    last_not = np.maximum.accumulate(np.where(is_so, -1, frames))
    next_not = np.minimum.accumulate(np.where(is_so, len(is_so), frames)[::-1])[::-1]
    before = frames - 1 - np.concatenate([[-1], last_not[:-1]])
    return np.minimum(before, next_not - frames)
