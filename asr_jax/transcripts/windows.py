"""Audio that is longer than the shapes of training: overlapped windows of it and, of what was made of these, pieces.

Windows begin on the model's frame grid, so that a frame of one lies exactly on a frame of the next: `transcripts.seams`
joins them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int16

from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.seams import FrameLogProbs, together

GRID = 8
"""Windows begin at multiples of so many frames: inner layers of a lower rate then see the same pairs of frames."""
OVERLAP_SHARE = 1 / 3
"""Of a window, by default: a symbol is heard with at least a ninth of a window on either side."""


@dataclass(frozen=True)
class Windows:
    """How long audio is cut, in samples."""

    size: int
    step: int
    """From the beginning of a window to that of the next: whole frames."""
    per_frame: int
    """From one frame that the heads see to the next."""

    @classmethod
    def of(cls, times: FrameTimes, size: int, *, overlap: int | None = None) -> "Windows":
        """Windows of `size` samples, of which the next repeats `overlap` or a little more.

        Raises: UserError where nothing new is left in a window.
        """
        overlap = round(size * OVERLAP_SHARE) if overlap is None else overlap
        per_frame, rate_hz = times.shift, times.rate_hz
        step = (size - overlap) // (per_frame * GRID) * per_frame * GRID
        if not 0 < step < size - 3 * per_frame:
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
    is shorter than a window gives a shorter one. No more than two windows and a block are held.
    """
    before, held, begin = np.zeros(0, np.int16), np.zeros(0, np.int16), 0
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > windows.size:
            yield Window(held[: windows.size], begin // windows.per_frame)
            before, held, begin = held[: windows.step], held[windows.step :], begin + windows.step
    back = min(windows.size - len(held), len(before)) // windows.grid * windows.grid
    yield Window(np.concatenate([before[len(before) - back :], held]), (begin - back) // windows.per_frame)


def pieces(parts: Iterable[FrameLogProbs], spelling: Spelling, *, most_frames: int) -> Iterator[FrameLogProbs]:
    """The frames of one recording in pieces of at most `most_frames`, cut between words where the pauses are longest,
    as far as there are any: for searches whose work or memory grows with the frames.
    """
    held: FrameLogProbs | None = None
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
    is none, of the longest one between labels; else `most`.
    """
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
