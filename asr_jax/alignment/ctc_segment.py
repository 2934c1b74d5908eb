"""Alignment of a long text to long audio by CTC: a Viterbi search in a band that follows the best path.

Between words there may be foreign speech, which is not in the text, and words of the text may be missing in the audio.
Both have a fixed cost, after which the alignment continues.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt8

from asr_jax.alignment.emissions import Emissions
from asr_jax.core.settings import Share, between, settings
from asr_jax.kernels.ctc_viterbi.reference import BLANK_FROM_LABEL, FROM_BLANK, STAY, moves, new_labels
from asr_jax.kernels.log_space import NEVER

BLOCK = 256
"""Number of frames between two moves of the band."""
JUMPED = 8
"""Bit that marks a blank that is reached by a jump over words. `ctc_viterbi.reference.moves` defines the lower bits."""


@settings
class LongSearch:
    """Settings of the search: costs of deviations from the text (natural logarithms), and width of the band."""

    foreign_logp: Annotated[float, between(most=0)] = -3.0
    """Log-probability that is added for each frame of foreign speech between words."""
    jump_logp: Annotated[float, between(most=0)] = -25.0
    """Log-probability that is added once for each run of words that are skipped, however many."""
    band: Annotated[int, between(16)] = 4096
    """Number of labels that are searched per frame. Memory is proportional to band plus frames, not to their product,
    because back-pointers are recomputed block by block."""
    max_band: int = 65536
    """Maximum of `band` when it is doubled."""
    left_out: Share = 0.1
    """Share of skipped labels above which the search is repeated with a band of twice the width, up to `max_band`."""

    def problems(self) -> Iterator[str]:
        if self.band > self.max_band:
            yield f"band is {self.band}: expected at most max_band, {self.max_band}"


FORCED = LongSearch(foreign_logp=-1e9, jump_logp=-1e9, left_out=0.0)
"""Search without foreign speech and skipped words. If no label begins a word, it is `ctc_align.align` in a band."""


@dataclass(frozen=True)
class LongPath:
    """Most probable path of a text through long audio."""

    starts: Int[np.ndarray, " U"]
    """First frame of each label; -1 for skipped labels."""
    ends: Int[np.ndarray, " U"]
    """Frame after the last frame of each label; -1 for skipped labels."""
    log_probs: Float[np.ndarray, " T"]
    """Log-probability of the path's symbol in each frame; for foreign speech it includes `foreign_logp`."""
    is_foreign: Bool[np.ndarray, " T"]
    """Whether each frame is speech that is not in the text."""


def align_long(
    emissions: Emissions,
    columns: Int[np.ndarray, " U"],
    begins_word: Bool[np.ndarray, " U"],
    *,
    search: LongSearch | None = None,
) -> LongPath:
    """Returns the most probable path of a text through long audio.

    Source: Kürzinger et al. 2020, "CTC-segmentation of large corpora for German end-to-end speech recognition"
    (arXiv:2007.09127): a moving window over the text, and a free beginning.
    Differs from: the source in its transitions. The source accepts foreign speech only at both ends and no missing
    words, and detects a window that is too small only by a failed backtracking.

    Args:
        columns: Column in `emissions.labels` of each label of the text.
        begins_word: Whether each label begins a word. Foreign speech may occur before such labels and after the text,
            and jumps over words begin and end there.
    """
    search = search or LongSearch()
    path = _search(emissions, columns, begins_word, search)
    while (path.starts < 0).mean() > search.left_out and search.band <= len(columns) and search.band < search.max_band:
        search = replace(search, band=min(2 * search.band, search.max_band))
        path = _search(emissions, columns, begins_word, search)
    return path


class _States(NamedTuple):
    """States before a block: the first label of the band, and the scores in the band (see `moves`)."""

    first: int
    blank: Float[np.ndarray, " W+1"]
    label: Float[np.ndarray, " W+1"]


class _Text(NamedTuple):
    """The text, padded by the width of the band: a band may begin at the end of the text."""

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
    nothing = emissions.labels.shape[1]  # index of the column of impossible labels
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
        return _search_block(*frames, *band, before.blank, before.label, jump_logp=search.jump_logp)

    blank = np.where(text.is_gap[: width + 1], search.jump_logp, NEVER).astype(np.float32)
    blank[0] = 0
    states = [_States(0, blank, np.full_like(blank, NEVER))]
    for number in range(num_blocks):
        states.append(_moved(states[-1].first, *block(number, states[-1])[:2], num_labels))
    last = states.pop()
    place, in_label = _end(last, text, num_labels, search)
    found = np.zeros((2, num_frames), np.int32)  # by frame: number of begun labels, whether the path is in a label
    is_reached = (last.label if in_label else last.blank)[place - last.first] > NEVER / 2
    for number in reversed(range(num_blocks if is_reached else 0)):
        _, _, pointers, gaps = map(np.asarray, block(number, states[number]))
        part = found[:, number * BLOCK : (number + 1) * BLOCK]
        place, in_label = _trace_back(part, pointers, gaps, states[number].first, place, in_label)
    return _path(found, emissions, columns, text.is_gap, search)


@functools.partial(jax.jit, static_argnames="jump_logp")
def _search_block(
    labels: Float[Array, "N K"],
    blanks: Float[Array, " N"],
    of_gaps: Float[Array, " N"],
    is_frame: Bool[Array, " N"],
    columns: Int[Array, " W"],
    is_new: Bool[Array, " W"],
    is_gap: Bool[Array, " W+1"],
    blank: Float[Array, " W+1"],
    label: Float[Array, " W+1"],
    *,
    jump_logp: float,
) -> tuple[Array, Array, Array, Array]:
    """Returns the states after a block of frames, and by frame the back-pointers and the scores of gaps before jumps.

    N frames, K distinct labels and one column of impossible ones, and W labels in the band. A gap is a blank between
    two words.

    Args:
        labels: Log-probabilities of the distinct labels.
        blanks: Log-probabilities of the blank.
        of_gaps: Log-probabilities in a gap, of silence or foreign speech.
        is_frame: Whether the frame exists; False for padding.
        columns: Column in `labels` of each label of the band.
        is_new: Whether each label differs from the label before it.
        is_gap: Whether each blank of the band is a gap.
        blank: Scores of the blanks before the block.
        label: Scores of the labels before the block.
        jump_logp: Log-probability of a jump from one gap to a later one.
    """

    def step(states: tuple[Array, Array], t: tuple[Array, Array, Array, Array]) -> tuple[tuple[Array, Array], tuple]:
        of_labels, of_blank, of_gap, is_frame = t
        stayed, entered, pointers = moves(is_new, *states)
        blank = stayed + jnp.where(is_gap, of_gap, of_blank)
        label = entered + jnp.pad(of_labels[columns], (1, 0), constant_values=NEVER)
        gaps = jnp.where(is_gap, blank, NEVER)
        jumped = jnp.pad(lax.cummax(gaps)[:-1], (1, 0), constant_values=NEVER) + jump_logp
        is_jump = is_gap & (jumped > blank)
        blank = jnp.where(is_jump, jumped, blank)
        best = jnp.maximum(blank, label).max()
        blank, label = jnp.maximum(blank - best, NEVER), jnp.maximum(label - best, NEVER)
        kept = jnp.where(is_frame, blank, states[0]), jnp.where(is_frame, label, states[1])
        return kept, (pointers + JUMPED * is_jump.astype(jnp.uint8), gaps)

    (blank, label), (pointers, gaps) = lax.scan(step, (blank, label), (labels, blanks, of_gaps, is_frame))
    return blank, label, pointers, gaps


def _trace_back(
    found: Int[np.ndarray, "2 N"],
    pointers: UInt8[np.ndarray, "M S"],
    gaps: Float[np.ndarray, "M S"],
    first: int,
    place: int,
    in_label: bool,
) -> tuple[int, bool]:
    """Writes the states of a block's frames to `found`, from the state at its end, and returns the state before it."""
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
    """Returns the states of the moved band. A quarter of it precedes the best state, unless the text ends before."""
    states, width = np.stack([blank, label]), len(blank) - 1
    best = int(states.max(0).argmax())
    by = max(min(best - width // 4, num_labels + 1 - width - first), 0)
    states = np.pad(states[:, by:], ((0, 0), (0, by)), constant_values=NEVER)
    return _States(first + by, states[0], states[1])


def _end(states: _States, text: _Text, num_labels: int, search: LongSearch) -> tuple[int, bool]:
    """Returns the best final state: the end of the text, or a gap between words if the rest of the text is skipped."""
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
