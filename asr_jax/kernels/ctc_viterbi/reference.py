"""The reference implementation of the most probable path of CTC: a scan over frames, and one back through them."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, Integer, UInt8

from asr_jax.kernels.log_space import NEVER

STAY, FROM_BLANK, FROM_LABEL = 0, 1, 2
"""Predecessor of a label's state: itself, the blank before it, or the label before it."""
BLANK_FROM_LABEL = 4
"""Bit that is set if the predecessor of a blank's state is the label before it instead of itself."""

Last = tuple[Float[Array, "B N"], Float[Array, "B N"]]
"""Scores of N = U + 1 blanks and labels in the last frame, minus their maximum."""


def forward(
    log_probs: Float[Array, "B T V"],
    lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
) -> tuple[Last, UInt8[Array, "B T U+1"]]:
    """Returns the last frame's scores of blanks and labels, minus their maximum, and the back-pointers by frame."""
    return jax.vmap(lambda *row: _forward(*row, blank_id=blank_id))(log_probs, lengths, labels, label_lengths)


def _forward(
    log_probs: Float[Array, "T V"],
    length: Int[Array, ""],
    labels: Int[Array, " U"],
    num_labels: Int[Array, ""],
    *,
    blank_id: int,
) -> tuple[tuple[Array, Array], UInt8[Array, "T U+1"]]:
    log_probs = jnp.maximum(log_probs.astype(jnp.float32), NEVER)
    used, is_new = jnp.arange(len(labels)) < num_labels, new_labels(labels)
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

    return lax.scan(step, (blank, jnp.full_like(blank, NEVER)), (log_probs, jnp.arange(len(log_probs)) < length))


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


def new_labels(labels: Int[Array, "*B U"]) -> Bool[Array, "*B U"]:
    """Returns whether each label differs from the label before it; False for the first one."""
    new = labels[..., 1:] != labels[..., :-1]
    return jnp.concatenate([jnp.zeros_like(new, shape=(*new.shape[:-1], 1)), new], axis=-1)[..., : labels.shape[-1]]


def final(last: Last, label_lengths: Int[Array, " B"]) -> tuple[Float[Array, " B"], Int32[Array, " B"]]:
    """Returns the score and the number of each row's last state: the last label, or the blank behind it.

    Args:
        last: Scores of blanks and labels in the last frame.
        label_lengths: Number of labels of each row.
    """
    blank, label = (jnp.take_along_axis(each, label_lengths[:, None], axis=1)[:, 0] for each in last)
    return jnp.maximum(blank, label), (2 * label_lengths - (label > blank)).astype(jnp.int32)


def backward(pointers: UInt8[Array, "B T N"], state: Int32[Array, " B"]) -> Int32[Array, "B T"]:
    """Returns the state of each frame.

    Args:
        pointers: Back-pointers by frame.
        state: State of the last frame of each row.
    """

    def of_row(pointers: UInt8[Array, "T N"], state: Int32[Array, ""]) -> Int32[Array, " T"]:
        def step(state: Array, of_frame: Array) -> tuple[Array, Array]:
            return state - moved(state, of_frame[(state + 1) // 2]), state

        return lax.scan(step, state, pointers, reverse=True)[1]

    return jax.vmap(of_row)(pointers, state)


def moved(state: Int[Array, "*B"], pointer: Integer[Array, "*B"]) -> Int32[Array, "*B"]:
    """Returns the number of states between the predecessor of a state and this state.

    Args:
        state: Number of the state: 2u for blank u, and 2u - 1 for label u.
        pointer: Back-pointer of label u and blank u.
    """
    pointer = pointer.astype(jnp.int32)
    of_blank = jnp.where(pointer >= BLANK_FROM_LABEL, 1, 0)
    return jnp.where(state & 1 == 1, pointer & (BLANK_FROM_LABEL - 1), of_blank)
