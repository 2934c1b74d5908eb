"""Audio that is longer than the shapes of training: overlapped windows, whose frames are joined to one sequence.

Windows begin on the model's frame grid, so that a frame of one lies exactly on a frame of the next. Where two overlap,
the frames of the first count up to the seam and those of the second from there. The seam lies near the middle of the
overlap, far from the ends of both windows, where every symbol that both have found is on one side of it for both, so
that none is doubled or lost where they place it differently, and best of all among blanks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int16

from asr_jax.core.errors import UserError
from asr_jax.decoding.spelling import Spelling
from asr_jax.models.base import Recogniser

GRID = 8
"""Windows begin at multiples of so many frames: inner layers of a lower rate then see the same pairs of frames."""
OVERLAP_SHARE = 1 / 3
"""Of a window, by default: a symbol is heard with at least a ninth of a window on either side."""
SEAM_SHARE = 1 / 3
"""Of an overlap, in its middle: where the seam may lie."""
SURE_FRAMES = 10
"""Frames on which both windows agree, on either side of a seam; more are no better."""
FAR_FRAMES = 10
"""Equal labels of two windows that are further apart are not the same one."""


@dataclass(frozen=True)
class Windows:
    """How long audio is cut, in samples."""

    size: int
    step: int
    """From the beginning of a window to that of the next: whole frames."""
    per_frame: int
    """From one frame that the heads see to the next."""

    @classmethod
    def of(cls, model: Recogniser, size: int, *, overlap: int | None = None) -> "Windows":
        """Windows of `size` samples, of which the next repeats `overlap` or a little more.

        Raises: UserError where nothing new is left in a window.
        """
        overlap = round(size * OVERLAP_SHARE) if overlap is None else overlap
        per_frame = round(model.frame_s * model.front_end.rate_hz)
        step = (size - overlap) // (per_frame * GRID) * per_frame * GRID
        if not 0 < step < size - 3 * per_frame:
            rate_hz = model.front_end.rate_hz
            raise UserError(
                f"windows of {size / rate_hz:g} s that overlap by {overlap / rate_hz:g} s: expected an overlap of "
                f"more than {3 * per_frame / rate_hz:g} s, and windows at least {GRID * per_frame / rate_hz:g} s longer"
            )
        return cls(size, step, per_frame)

    @property
    def grid(self) -> int:
        """Windows begin at multiples of this."""
        return self.per_frame * GRID


class Window(NamedTuple):
    """A part of a recording that the model hears at once."""

    samples: Int16[np.ndarray, " S"]
    first_frame: int
    """Of the recording: which one the window's first is."""


def windows_of(blocks: Iterable[Int16[np.ndarray, "_"]], windows: Windows) -> Iterator[Window]:
    """The windows of a recording, whose samples come in blocks. All are full, the last one overlapping more; only what
    is shorter than a window gives a shorter one. No more than two windows and a block are held."""
    before, held, begin = np.zeros(0, np.int16), np.zeros(0, np.int16), 0
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > windows.size:
            yield Window(held[: windows.size], begin // windows.per_frame)
            before, held, begin = held[: windows.step], held[windows.step :], begin + windows.step
    back = min(windows.size - len(held), len(before)) // windows.grid * windows.grid
    yield Window(np.concatenate([before[len(before) - back :], held]), (begin - back) // windows.per_frame)


class Heard(NamedTuple):
    """What the model made of consecutive frames."""

    first_frame: int
    """Of the recording."""
    path: Int[np.ndarray, " T"]
    """The likeliest symbol of each frame."""
    logps: Float[np.ndarray, "T *V"]
    """Log-probabilities: of the path's symbols, or of all."""

    @property
    def end_frame(self) -> int:
        return self.first_frame + len(self.path)

    def of_path(self) -> "Heard":
        """With the log-probabilities of the path alone."""
        if self.logps.ndim == 1:
            return self
        return self._replace(logps=np.take_along_axis(self.logps, self.path[:, None], axis=1)[:, 0])

    def between(self, first: int, end: int) -> "Heard":
        """Its frames from `first` to before `end`, as the recording counts them."""
        part = slice(first - self.first_frame, end - self.first_frame)
        return Heard(first, self.path[part], self.logps[part])


def joined_windows(windows: Iterable[Heard], *, blank_id: int) -> Iterator[Heard]:
    """Of the windows of one recording, in order: the frames that count, each once, a part per window."""
    before: Heard | None = None
    for heard in windows:
        if before:
            cut = seam(before, heard, blank_id=blank_id)
            yield before.between(before.first_frame, cut)
            heard = heard.between(cut, heard.end_frame)
        before = heard
    if before:
        yield before


def seam(left: Heard, right: Heard, *, blank_id: int) -> int:
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
    ours, theirs = left.between(first, end).path, right.between(first, end).path
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


def pieces(parts: Iterable[Heard], spelling: Spelling, *, most_frames: int) -> Iterator[Heard]:
    """The frames of one recording in pieces of at most `most_frames`, cut between words where the pauses are longest,
    as far as there are any: for searches whose work or memory grows with the frames."""
    held: Heard | None = None
    for part in parts:
        held = together([held, part]) if held else part
        while len(held.path) > most_frames:
            cut = held.first_frame + pause(held.path, spelling, least=most_frames // 3, most=most_frames)
            yield held.between(held.first_frame, cut)
            held = held.between(cut, held.end_frame)
    if held:
        yield held


def pause(path: Int[np.ndarray, " T"], spelling: Spelling, *, least: int, most: int) -> int:
    """A frame from `least` to `most` to cut before: in the middle of the longest pause between two words; where there
    is none, of the longest one between labels; else `most`."""
    is_quiet = path == spelling.blank_id
    if spelling.border is not None:
        is_quiet |= path == spelling.border
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_quiet, [False]])))
    best = (False, 0, most)
    for begin, end in edges.reshape(-1, 2).tolist():
        cut = (max(begin, least) + min(end, most) + 1) // 2
        if not least <= cut <= most or begin >= most:
            continue
        is_between = end == len(path) or begin == 0 or spelling.opens[path[end]]
        if spelling.border is not None:
            is_between = is_between or bool((path[begin:end] == spelling.border).any())
        best = max(best, (is_between, min(end, most) - max(begin, least), cut))
    return best[2]


def together(parts: Iterable[Heard]) -> Heard:
    """All frames of a recording at once."""
    parts = list(parts)
    return Heard(
        parts[0].first_frame, np.concatenate([part.path for part in parts]),
        np.concatenate([part.logps for part in parts]),
    )  # fmt: skip
