"""RNN-T loss from the logits of all nodes. The package computes logits in tiles, with `arc_log_probs` for each tile."""

from asr_jax.kernels.transducer_joint.reference import arc_log_probs
from asr_jax.losses.lattice import RNNT, lattice_loss
from asr_jax.losses.transducer import NO_PENALTIES, penalised


def transducer_loss(logits, num_frames, labels, num_labels, *, blank_id, fast_emit=0.0, penalties=NO_PENALTIES):
    """Returns the loss of each row for logits [B T S V] at S = U + 1 label positions."""
    arcs = arc_log_probs(logits, labels, blank_id=blank_id)
    blank, label = penalised(*arcs, num_frames, labels, penalties)
    return lattice_loss(blank[None], label[None], num_frames, num_labels, RNNT, fast_emit)
