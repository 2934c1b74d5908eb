"""Overlapping windows of long audio, and pieces of their joined frames.

Windows begin on the model's frame grid. The frames of overlapping windows therefore coincide, and `transcripts.seams`
joins them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int16

from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.text.segmentation import may_follow
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.seams import FrameLogProbs, together

GRID = 8
"""Windows begin at multiples of this number of frames, which keeps downsampling in inner layers aligned."""
OVERLAP_SHARE = 1 / 3
"""Default overlap as a share of the window. Each symbol then has at least a ninth of a window of context on both
sides."""


@dataclass(frozen=True)
class Windows:
    """Sizes of windows, in samples."""

    size: int
    """Length of a window."""
    step: int
    """Distance between the starts of consecutive windows, a multiple of the grid."""
    per_frame: int
    """Hop of the frames that the heads read."""
    is_last_full: bool = True
    """Whether the last window begins earlier than after a step, so that it is full except for less than the grid."""

    @classmethod
    def of(cls, times: FrameTimes, size: int, *, overlap: int | None = None, is_last_full: bool = True) -> "Windows":
        """Returns windows that overlap by `overlap` samples or a little more.

        Args:
            times: Frame times of the head's frames.
            size: Length of a window in samples.
            overlap: Smallest overlap in samples. None: the share OVERLAP_SHARE of `size`.
            is_last_full: Whether the last window is full.

        Raises:
            UserError: If the overlap or the difference between window and overlap is too small.
        """
        overlap = round(size * OVERLAP_SHARE) if overlap is None else overlap
        per_frame, rate_hz = times.shift, times.rate_hz
        step = (size - overlap) // (per_frame * GRID) * per_frame * GRID
        if not 0 < step < size - 3 * per_frame:
            raise UserError(
                f"windows of {size / rate_hz:g} s that overlap by {overlap / rate_hz:g} s: expected an overlap of "
                f"more than {3 * per_frame / rate_hz:g} s, and windows that are longer than it by at least "
                f"{GRID * per_frame / rate_hz:g} s"
            )
        return cls(size, step, per_frame, is_last_full)

    @property
    def grid(self) -> int:
        """Unit of the starts of windows in samples."""
        return self.per_frame * GRID


class AudioWindow(NamedTuple):
    """A part of a recording that the model computes at once."""

    samples: Int16[np.ndarray, " S"]
    first_frame: int
    """Frame number in the recording of the window's first frame."""


def windows_of(blocks: Iterable[Int16[np.ndarray, "_"]], windows: Windows) -> Iterator[AudioWindow]:
    """Yields the windows of a recording.

    The last window overlaps more than the others, unless `windows.is_last_full` is False. A recording shorter than a
    window is one shorter window. At most two windows and a block are in memory.

    Args:
        blocks: Consecutive blocks of the recording's samples.
    """
    before, held, begin = np.zeros(0, np.int16), np.zeros(0, np.int16), 0
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > windows.size:
            yield AudioWindow(held[: windows.size], begin // windows.per_frame)
            before, held, begin = held[: windows.step], held[windows.step :], begin + windows.step
    free = windows.size - len(held) if windows.is_last_full else 0
    back = min(free, len(before)) // windows.grid * windows.grid
    yield AudioWindow(np.concatenate([before[len(before) - back :], held]), (begin - back) // windows.per_frame)


def pieces(parts: Iterable[FrameLogProbs], spelling: Spelling, *, most_frames: int) -> Iterator[FrameLogProbs]:
    """Cuts the frames of a recording into pieces, for searches whose cost or memory grows with the number of frames.

    Pieces are cut at the longest pauses between words, if there are pauses.

    Args:
        parts: Consecutive frames of the recording.
        spelling: Text of each label.
        most_frames: Largest number of frames in a piece.
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
    """Returns the frame of a path before which to cut it.

    The cut is in the middle of the longest pause between two words; if there is none, in the middle of the longest one
    between labels; otherwise at `most`.

    Args:
        path: Symbol of each frame.
        spelling: Text of each label.
        least: Smallest result.
        most: Largest result.
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
        is_between = end == len(path) or begin == 0
        if not is_between:
            beside = path[[begin - 1, end]]
            is_between = bool(spelling.boundaries(beside)[1]) or may_follow(*(spelling.texts[i] for i in beside))
        if spelling.border is not None:
            is_between = is_between or bool((path[begin:end] == spelling.border).any())
        best = max(best, (is_between, min(end, most) - max(begin, least), cut))
    return best[2]
