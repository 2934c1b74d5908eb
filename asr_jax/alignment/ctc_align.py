"""Forced alignment over CTC: the likeliest path of given labels, a batch at once, on the device."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, UInt8

from asr_jax.core.batch import AnyArray, length_mask
from asr_jax.losses.ctc import NEVER, is_feasible

STAY, FROM_BLANK, FROM_LABEL = 0, 1, 2
"""Where a label's state was in the frame before: in itself, in the blank before it, in the label before it."""
BLANK_FROM_LABEL = 4
"""Of a blank's state, in the same byte: in the label before it, instead of in itself."""


class Alignment(struct.PyTreeNode):
    """The likeliest path of each row's labels. What lies beyond a row's labels, and all of a row without a path, is -1
    in `starts` and `ends`, 0 in `log_probs`.
    """

    starts: Int32[AnyArray, "*B U"]
    """First frame of each label."""
    ends: Int32[AnyArray, "*B U"]
    """The frame behind its last one."""
    log_probs: Float[AnyArray, "*B U"]
    """Its log-probability in the likeliest of its frames."""
    scores: Float[AnyArray, "*B"]
    """Log-probability of the path; minus infinity where there is none."""
    is_possible: Bool[AnyArray, "*B"]
    """Whether there is one: not where frames are fewer than labels and repeats, or where no path has a probability."""


def align(
    log_probs: Float[Array, "B T V"],
    lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
) -> Alignment:
    """Viterbi over the labels with blanks between, static in all shapes: to be jitted, rows sharded or not.

    What lies beyond the lengths has no influence. Of moves that are equally good the one over fewer states is taken. A
    byte is kept for each frame and label.

    Source: Graves et al. 2006, equations 6-7 with the maximum in the place of the sum.
    Differs from: torchaudio 2.11's forced_align, which takes one row, raises where there are too few frames, and stays
    where two other moves are better and equally good.
    """
    used = length_mask(label_lengths, labels.shape[1])
    labels = jnp.where(used, labels, blank_id)
    feasible = is_feasible(lengths, labels, label_lengths)
    frames = length_mask(lengths, log_probs.shape[1])
    of_rows = jax.vmap(lambda *row: _align_row(*row, blank_id=blank_id))
    return of_rows(log_probs, frames, labels, used, label_lengths, feasible)


def _align_row(
    log_probs: Float[Array, "T V"],
    frames: Bool[Array, " T"],
    labels: Int[Array, " U"],
    used: Bool[Array, " U"],
    num_labels: Int[Array, ""],
    feasible: Bool[Array, ""],
    *,
    blank_id: int,
) -> Alignment:
    num_frames = len(frames)
    log_probs = jnp.maximum(log_probs.astype(jnp.float32), NEVER)
    (blank, label), pointers = _forward(labels, used, log_probs, frames, blank_id=blank_id)
    ended = blank[num_labels], label[num_labels]
    place, in_label = _backward(pointers, num_labels, ended[1] > ended[0])
    symbols = jnp.where(in_label, jnp.append(labels, blank_id)[place - 1], blank_id)
    of_path = jnp.take_along_axis(log_probs, symbols[:, None], axis=1)[:, 0]
    score = jnp.where(frames, of_path, 0).sum()
    is_possible = feasible & (jnp.maximum(*ended) > NEVER / 2) & (score > NEVER / 2)
    column = jnp.where(frames & in_label, place - 1, len(labels))  # beyond the row: dropped
    t, shown = jnp.arange(num_frames, dtype=jnp.int32), used & is_possible
    starts = jnp.full(len(labels), num_frames, jnp.int32).at[column].min(t, mode="drop")
    ends = jnp.zeros(len(labels), jnp.int32).at[column].max(t + 1, mode="drop")
    best = jnp.full(len(labels), NEVER, jnp.float32).at[column].max(of_path, mode="drop")
    return Alignment(
        starts=jnp.where(shown, starts, -1),
        ends=jnp.where(shown, ends, -1),
        log_probs=jnp.where(shown, best, 0),
        scores=jnp.where(is_possible, score, -jnp.inf),
        is_possible=is_possible,
    )


def moves(
    is_new: Bool[Array, " U"], blank: Float[Array, " U+1"], label: Float[Array, " U+1"]
) -> tuple[Float[Array, " U+1"], Float[Array, " U+1"], UInt8[Array, " U+1"]]:
    """The best score before a frame's own emission of each blank and each label, and where it comes from.

    Blank u comes after u labels; label u counts from 1, and 0 stands for none. `is_new`: of `new_labels`.
    """
    step, stay = blank[:-1], label[1:]
    skip = jnp.where(is_new, label[:-1], NEVER)
    before = jnp.maximum(step, skip)
    origin = jnp.where(before > stay, jnp.where(skip > step, FROM_LABEL, FROM_BLANK), STAY)
    pointers = jnp.pad(origin, (1, 0)) + jnp.where(label > blank, BLANK_FROM_LABEL, STAY)
    entered = jnp.pad(jnp.maximum(stay, before), (1, 0), constant_values=NEVER)
    return jnp.maximum(blank, label), entered, pointers.astype(jnp.uint8)


def new_labels(labels: Int[Array, " U"]) -> Bool[Array, " U"]:
    """Whether each label differs from the one before it; not the first, which has none before it."""
    return jnp.pad(labels[1:] != labels[:-1], (1, 0))[: len(labels)]


def _forward(
    labels: Int[Array, " U"],
    used: Bool[Array, " U"],
    log_probs: Float[Array, "T V"],
    frames: Bool[Array, " T"],
    *,
    blank_id: int,
) -> tuple[tuple[Array, Array], UInt8[Array, "T U+1"]]:
    """The last frame's scores of blanks and of labels, less the best of all, and where each came from."""
    is_new = new_labels(labels)
    blank = jnp.full(len(labels) + 1, NEVER, jnp.float32).at[0].set(0)

    def step(states: tuple[Array, Array], t: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        of_frame, is_frame = t
        stayed, entered, pointers = moves(is_new, *states)
        of_labels = jnp.where(used, of_frame[labels], NEVER)
        blank = stayed + of_frame[blank_id]
        label = entered + jnp.pad(of_labels, (1, 0), constant_values=NEVER)
        best = jnp.maximum(blank, label).max()
        blank, label = jnp.maximum(blank - best, NEVER), jnp.maximum(label - best, NEVER)
        kept = jnp.where(is_frame, blank, states[0]), jnp.where(is_frame, label, states[1])
        return kept, jnp.where(is_frame, pointers, STAY)

    return lax.scan(step, (blank, jnp.full_like(blank, NEVER)), (log_probs, frames))


def _backward(
    pointers: UInt8[Array, "T N"], place: Int[Array, ""], in_label: Bool[Array, ""]
) -> tuple[Int32[Array, " T"], Bool[Array, " T"]]:
    """By frame: how many labels were begun, and whether the state is a label's; `place` and `in_label`: of the last."""

    def step(state: tuple[Array, Array], of_frame: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        place, in_label = state
        pointer = of_frame[place]
        origin = pointer % BLANK_FROM_LABEL
        before = place - jnp.where(in_label & (origin != STAY), 1, 0)
        was_label = jnp.where(in_label, origin != FROM_BLANK, pointer >= BLANK_FROM_LABEL)
        return (before, was_label), (place, in_label)

    return lax.scan(step, (place.astype(jnp.int32), in_label), pointers, reverse=True)[1]
