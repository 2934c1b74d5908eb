"""The most probable path of labels by CTC, with an implementation chosen for the device."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from asr_jax.kernels.ctc_viterbi.reference import final
from asr_jax.kernels.implementations import Implementation, module_of


def ctc_viterbi(
    log_probs: Float[Array, "B T V"],
    lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, " B"], Int32[Array, "B T"]]:
    """Computes the most probable path of the labels with blanks between them.

    State 2u is the blank behind u labels, and state 2u - 1 is label u. From frame to frame a path stays in its state,
    moves to the next one, or moves from a label to the next label if both differ. Of equally good transitions, the one
    over fewer states is taken. Memory is one byte per frame and label.

    Source: Graves et al. 2006, equations 6-7 with maxima instead of sums.

    Args:
        log_probs: Log-probabilities of all labels.
        lengths: Number of frames of each row, at most T; larger ones count as T.
        label_lengths: Number of labels of each row.
        implementation: "mosaic_tpu" is for fewer than 4,096 labels.

    Returns:
        The score of the path in the last frame, minus the largest score of any state, and the state of each frame.
        Padding has the state of the last frame. A score below NEVER / 2 means that there is no path.
    """
    used = jnp.arange(labels.shape[1])[None] < label_lengths[:, None]
    given = (log_probs, jnp.minimum(lengths, log_probs.shape[1]), jnp.where(used, labels, blank_id), label_lengths)

    def reason_against(name: str) -> str:
        if name != "mosaic_tpu":
            return ""
        from asr_jax.kernels.ctc_viterbi.mosaic_tpu import MOST_LABELS  # imported late, as in `module_of`

        number = labels.shape[1]
        return f"{number} labels: expected at most {MOST_LABELS}" if number > MOST_LABELS else ""

    module = module_of("ctc_viterbi", implementation, log_probs, reason_against=reason_against)
    last, pointers = module.forward(*given, blank_id=blank_id)
    score, state = final(last, label_lengths)
    return score, module.backward(pointers, state)[:, : log_probs.shape[1]]
