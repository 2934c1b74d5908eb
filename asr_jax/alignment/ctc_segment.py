"""Where a long text is said in long audio: Viterbi over CTC in a band that moves with the best path.

Between words there may be speech that is not in the text, and words of the text may never be said: both cost a fixed
amount, so that the rest is found again.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from asr_jax.alignment.ctc_align import BLANK_FROM_LABEL, FROM_BLANK, STAY, new_labels
from asr_jax.alignment.ctc_segment_block import BLOCK, JUMPED, search_block
from asr_jax.alignment.emissions import Emissions
from asr_jax.losses.ctc import NEVER


@dataclass(frozen=True)
class LongSearch:
    """What departures from the text cost, and how wide the band is. Logarithms are natural."""

    foreign_logp: float = -3.0
    """Added for each frame between words in which another label than the text's counts as said."""
    jump_logp: float = -25.0
    """Added where words of the text, however many, are left out."""
    band: int = 4096
    """Labels that are looked at in a frame. Memory goes by band and by frames, never by their product: what leads back
    is computed again, block by block."""
    max_band: int = 65536
    left_out: float = 0.1
    """Share of the text's labels: while more of them are left out, the band is doubled, up to `max_band`."""

    def __post_init__(self) -> None:
        if not max(self.foreign_logp, self.jump_logp) <= 0:
            raise ValueError(f"foreign_logp {self.foreign_logp}, jump_logp {self.jump_logp}: expected 0 or less")
        if not 0 <= self.left_out <= 1:
            raise ValueError(f"left_out {self.left_out}: expected 0 to 1")
        if not 16 <= self.band <= self.max_band:
            raise ValueError(f"band {self.band}, max_band {self.max_band}: expected 16 or more, and band ≤ max_band")


FORCED = LongSearch(foreign_logp=-1e9, jump_logp=-1e9, left_out=0.0)
"""Nothing foreign and nothing left out, where no label begins a word: `ctc_align.align`, in a band."""


@dataclass(frozen=True)
class LongPath:
    """The likeliest path of a text through long audio."""

    starts: Int[np.ndarray, " U"]
    """First frame of each label; -1 for those that are left out."""
    ends: Int[np.ndarray, " U"]
    """The frame behind its last one."""
    log_probs: Float[np.ndarray, " T"]
    """Of the path's symbol in each frame; in foreign frames with `foreign_logp`."""
    is_foreign: Bool[np.ndarray, " T"]
    """Frames of speech that is not in the text."""


def align_long(
    emissions: Emissions,
    columns: Int[np.ndarray, " U"],
    begins_word: Bool[np.ndarray, " U"],
    *,
    search: LongSearch | None = None,
) -> LongPath:
    """`columns`: of `emissions.labels`, for each label of the text; `begins_word`: where words may be left out, and
    foreign speech may stand.

    Source: Kürzinger et al. 2020, "CTC-segmentation of large corpora for German end-to-end speech recognition"
    (arXiv:2007.09127): a window over the text that moves, and a beginning that costs nothing.
    Differs from: it in the transitions. There speech that is not in the text is survived at both ends alone, a text
    that is not said nowhere, and a window that was too small is noticed by a failed backtracking alone.
    """
    search = search or LongSearch()
    path = _search(emissions, columns, begins_word, search)
    while (path.starts < 0).mean() > search.left_out and search.band <= len(columns) and search.band < search.max_band:
        search = replace(search, band=min(2 * search.band, search.max_band))
        path = _search(emissions, columns, begins_word, search)
    return path


class _States(NamedTuple):
    """Before a block: where its band begins, and the scores in it (see `moves`)."""

    first: int
    blank: Float[np.ndarray, " W+1"]
    label: Float[np.ndarray, " W+1"]


class _Text(NamedTuple):
    """The text, with so much room behind it that a band may begin at its end."""

    columns: Int[np.ndarray, " P"]
    is_new: Bool[np.ndarray, " P"]
    is_gap: Bool[np.ndarray, " P+1"]

    def band(self, first: int, width: int) -> tuple[Array, Array, Array]:
        columns, is_new = self.columns[first : first + width], self.is_new[first : first + width]
        return jnp.asarray(columns), jnp.asarray(is_new), jnp.asarray(self.is_gap[first : first + width + 1])


def _search(
    emissions: Emissions, columns: Int[np.ndarray, " U"], begins_word: Bool[np.ndarray, " U"], search: LongSearch
) -> LongPath:
    num_frames, num_labels = len(emissions.blanks), len(columns)
    width = min(search.band, -(-(num_labels + 1) // 64) * 64)
    nothing = emissions.labels.shape[1]  # the column of what cannot be said
    room = (0, width)
    text = _Text(
        np.pad(columns, room, constant_values=nothing),
        np.pad(np.asarray(new_labels(jnp.asarray(columns))), room),
        np.pad(np.append(begins_word, True), room),
    )
    num_blocks = -(-num_frames // BLOCK)
    more = (0, num_blocks * BLOCK - num_frames)
    labels = np.pad(emissions.labels, (more, (0, 1)), constant_values=NEVER)
    blanks = np.pad(emissions.blanks, more)
    of_gaps = np.pad(np.maximum(emissions.silences, emissions.others + search.foreign_logp), more)

    def block(number: int, before: _States) -> tuple[Array, Array, Array, Array]:
        part = slice(number * BLOCK, (number + 1) * BLOCK)
        is_frame = np.arange(part.start, part.stop) < num_frames
        frames = map(jnp.asarray, (labels[part], blanks[part], of_gaps[part], is_frame))
        band = text.band(before.first, width)
        return search_block(*frames, *band, before.blank, before.label, jump_logp=search.jump_logp)

    blank = np.where(text.is_gap[: width + 1], search.jump_logp, NEVER).astype(np.float32)
    blank[0] = 0
    states = [_States(0, blank, np.full_like(blank, NEVER))]
    for number in range(num_blocks):
        states.append(_moved(states[-1].first, *block(number, states[-1])[:2], num_labels))
    last = states.pop()
    place, in_label = _end(last, text, num_labels, search)
    found = np.zeros((2, num_frames), np.int32)  # labels begun, and whether in one, by frame
    is_reached = (last.label if in_label else last.blank)[place - last.first] > NEVER / 2
    for number in reversed(range(num_blocks if is_reached else 0)):
        _, _, pointers, gaps = map(np.asarray, block(number, states[number]))
        part = found[:, number * BLOCK : (number + 1) * BLOCK]
        place, in_label = _trace_back(part, pointers, gaps, states[number].first, place, in_label)
    return _path(found, emissions, columns, text.is_gap, search)


def _trace_back(
    found: Int[np.ndarray, "2 N"],
    pointers: UInt8[np.ndarray, "M S"],
    gaps: Float[np.ndarray, "M S"],
    first: int,
    place: int,
    in_label: bool,
) -> tuple[int, bool]:
    """Fills in the states of a block's frames from the one that it ends in; the state before them."""
    for t in reversed(range(found.shape[1])):
        at = place - first
        pointer = int(pointers[t, at])
        if not in_label and pointer & JUMPED:
            at = int(np.argmax(gaps[t, :at]))
            pointer = int(pointers[t, at])
        found[:, t] = first + at, in_label
        origin = pointer % BLANK_FROM_LABEL
        place = first + at - (in_label and origin != STAY)
        in_label = origin != FROM_BLANK if in_label else bool(pointer & BLANK_FROM_LABEL)
    return place, in_label


def _moved(first: int, blank: Array, label: Array, num_labels: int) -> _States:
    """The band so that a quarter of it lies behind the best state, and no more of it behind the text than must."""
    states, width = np.stack([blank, label]), len(blank) - 1
    best = int(states.max(0).argmax())
    by = max(min(best - width // 4, num_labels + 1 - width - first), 0)
    states = np.pad(states[:, by:], ((0, 0), (0, by)), constant_values=NEVER)
    return _States(first + by, states[0], states[1])


def _end(states: _States, text: _Text, num_labels: int, search: LongSearch) -> tuple[int, bool]:
    """The best state to end in: behind the text, or, where the rest of the text is not said, between two words."""
    places = states.first + np.arange(len(states.blank))
    costs = np.where(places == num_labels, 0.0, search.jump_logp)
    blank = np.where(text.is_gap[places] & (places <= num_labels), states.blank + costs, 2.0 * NEVER)
    best = int(blank.argmax())
    last = num_labels - states.first
    if 0 < last < len(states.label) and states.label[last] > blank[best]:
        return num_labels, True
    return int(places[best]), False


def _path(
    found: Int[np.ndarray, "2 T"],
    emissions: Emissions,
    columns: Int[np.ndarray, " U"],
    is_gap: Bool[np.ndarray, " P"],
    search: LongSearch,
) -> LongPath:
    place, in_label = found[0], found[1].astype(bool)
    starts, ends = np.full(len(columns), -1, np.int64), np.full(len(columns), -1, np.int64)
    frames = np.flatnonzero(in_label)
    starts[place[frames[::-1]] - 1] = frames[::-1]
    ends[place[frames] - 1] = frames + 1
    of_gaps = np.maximum(emissions.silences, foreign := emissions.others + search.foreign_logp)
    in_gap = ~in_label & is_gap[place]
    log_probs = np.where(in_gap, of_gaps, emissions.blanks)
    log_probs[frames] = emissions.labels[frames, columns[place[frames] - 1]]
    return LongPath(starts, ends, log_probs, in_gap & (foreign > emissions.silences))
