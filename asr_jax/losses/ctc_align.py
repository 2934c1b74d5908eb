"""Batched CTC forced alignment on the device: the most probable path of given labels."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int32

from asr_jax.core.batch import AnyArray, length_mask
from asr_jax.kernels.ctc_viterbi.api import ctc_viterbi
from asr_jax.kernels.log_space import NEVER
from asr_jax.losses.ctc import is_feasible


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
        label_lengths: Number of labels of each row.
    """
    used = length_mask(label_lengths, labels.shape[1])
    labels = jnp.where(used, labels, blank_id)
    feasible = is_feasible(lengths, labels, label_lengths)
    frames = length_mask(lengths, log_probs.shape[1])
    last, states = ctc_viterbi(log_probs, lengths, labels, label_lengths, blank_id=blank_id)
    of_rows = jax.vmap(lambda *row: _align_row(*row, blank_id=blank_id))
    return of_rows(log_probs, frames, labels, used, states, feasible & (last > NEVER / 2))


def _align_row(
    log_probs: Float[Array, "T V"],
    frames: Bool[Array, " T"],
    labels: Int[Array, " U"],
    used: Bool[Array, " U"],
    states: Int32[Array, " T"],
    reached: Bool[Array, ""],
    *,
    blank_id: int,
) -> Alignment:
    """Returns the alignment of a row whose path has these states (see `ctc_viterbi`)."""
    num_frames = len(frames)
    log_probs = jnp.maximum(log_probs.astype(jnp.float32), NEVER)
    place, in_label = (states + 1) // 2, states % 2 == 1
    symbols = jnp.where(in_label, jnp.append(labels, blank_id)[place - 1], blank_id)
    of_path = jnp.take_along_axis(log_probs, symbols[:, None], axis=1)[:, 0]
    score = jnp.where(frames, of_path, 0).sum()
    is_possible = reached & (score > NEVER / 2)
    column = jnp.where(frames & in_label, place - 1, len(labels))  # mode="drop" ignores the last index
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
