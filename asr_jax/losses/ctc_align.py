"""Batched CTC forced alignment on the device: the most probable path of given labels."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, UInt8

from asr_jax.core.batch import AnyArray, length_mask
from asr_jax.losses.ctc import NEVER, is_feasible

STAY, FROM_BLANK, FROM_LABEL = 0, 1, 2
"""Predecessor of a label's state: itself, the blank before it, or the label before it."""
BLANK_FROM_LABEL = 4
"""Bit that is set if the predecessor of a blank's state is the label before it instead of itself."""


class Alignment(struct.PyTreeNode):
    """Most probable path of each row's labels.

    Padding, and rows without a path, have -1 in `starts` and `ends`, and 0 in `log_probs`.
    """

    starts: Int32[AnyArray, "*B U"]
    """First frame of each label."""
    ends: Int32[AnyArray, "*B U"]
    """Frame after the last frame of each label."""
    log_probs: Float[AnyArray, "*B U"]
    """Maximum log-probability of each label over its frames."""
    scores: Float[AnyArray, "*B"]
    """Log-probability of the path; minus infinity if there is none."""
    is_possible: Bool[AnyArray, "*B"]
    """Whether there is a path. There is none if the row has fewer frames than labels and repeats, or if every path has
    probability 0."""


def align(
    log_probs: Float[Array, "B T V"],
    lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
) -> Alignment:
    """Returns the Viterbi path of the labels with blanks between them.

    All shapes are static: the function can be compiled with `jax.jit`, with rows sharded or not. Padding has no
    influence. Of two equally good transitions, the one over fewer states is taken. Memory is one byte per frame and
    label.

    Source: Graves et al. 2006, equations 6-7 with maxima instead of sums.
    Differs from: torchaudio 2.11's forced_align, which takes one row, raises an error for too few frames, and stays in
    a state if the two other transitions are better and equally good.

    Args:
        log_probs: Log-probabilities of all labels.
        lengths: Number of frames of each row.
        labels: Label ids.
        label_lengths: Number of labels of each row.
        blank_id: Label id of the blank.
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
    column = jnp.where(
        frames & in_label, place - 1, len(labels)
    )  # out of bounds for all other frames, which are dropped
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
    """Returns the best score of each blank and each label before a frame's emission, and their back-pointers.

    Blank u follows u labels. Labels are counted from 1; label 0 stands for no label.

    Args:
        is_new: Result of `new_labels`.
        blank: Scores of the blanks' states in the frame before.
        label: Scores of the labels' states in the frame before.
    """
    step, stay = blank[:-1], label[1:]
    skip = jnp.where(is_new, label[:-1], NEVER)
    before = jnp.maximum(step, skip)
    origin = jnp.where(before > stay, jnp.where(skip > step, FROM_LABEL, FROM_BLANK), STAY)
    pointers = jnp.pad(origin, (1, 0)) + jnp.where(label > blank, BLANK_FROM_LABEL, STAY)
    entered = jnp.pad(jnp.maximum(stay, before), (1, 0), constant_values=NEVER)
    return jnp.maximum(blank, label), entered, pointers.astype(jnp.uint8)


def new_labels(labels: Int[Array, " U"]) -> Bool[Array, " U"]:
    """Returns whether each label differs from the label before it; False for the first one."""
    return jnp.pad(labels[1:] != labels[:-1], (1, 0))[: len(labels)]


def _forward(
    labels: Int[Array, " U"],
    used: Bool[Array, " U"],
    log_probs: Float[Array, "T V"],
    frames: Bool[Array, " T"],
    *,
    blank_id: int,
) -> tuple[tuple[Array, Array], UInt8[Array, "T U+1"]]:
    """Returns the last frame's scores of blanks and labels, minus their maximum, and the back-pointers by frame."""
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
    """Returns for each frame the number of started labels, and whether the path is in a label.

    `place` and `in_label` are these values for the last frame.
    """

    def step(state: tuple[Array, Array], of_frame: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        place, in_label = state
        pointer = of_frame[place]
        origin = pointer % BLANK_FROM_LABEL
        before = place - jnp.where(in_label & (origin != STAY), 1, 0)
        was_label = jnp.where(in_label, origin != FROM_BLANK, pointer >= BLANK_FROM_LABEL)
        return (before, was_label), (place, in_label)

    return lax.scan(step, (place.astype(jnp.int32), in_label), pointers, reverse=True)[1]
