"""One block of frames of the search through long audio, computed on the device."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.kernels.ctc_viterbi.reference import moves
from asr_jax.kernels.log_space import NEVER

BLOCK = 256
"""Number of frames between two moves of the band."""
JUMPED = 8
"""Bit, in addition to those of `ctc_viterbi.reference.moves`, of a blank that was reached by a jump over words."""


@functools.partial(jax.jit, static_argnames="jump_logp")
def search_block(
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
