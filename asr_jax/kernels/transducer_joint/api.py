"""The joint network of transducers and its log-probabilities, with an implementation chosen for the device."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.kernels.gradients import with_gradient
from asr_jax.kernels.implementations import Implementation, module_of
from asr_jax.kernels.transducer_joint import reference, xla
from asr_jax.kernels.transducer_joint.reference import Activation


def transducer_joint(
    frames: Float[Array, "B T D"],
    predictions: Float[Array, "B S D"],
    kernel: Float[Array, "D V"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B U"],
    num_frames: Int[Array, " B"],
    num_labels: Int[Array, " B"],
    *,
    blank_id: int,
    activation: Activation,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Computes the log-probabilities of the blank and of the next label at each node of a transducer's lattice.

    The logits of the node of frame t and position s are activation(frames[t] + predictions[s]) · kernel + bias.

    Source: Graves 2012 (arXiv:1211.3711), with the joint network of He et al. 2018 (arXiv:1811.06621).

    Args:
        predictions: Projected predictions of S = U + 1 label positions.
        kernel: Weights of the output, for V labels including the blank.
        num_frames: Number of valid frames of each row.
        num_labels: Number of valid labels of each row.
        activation: Activation of the joint network, "relu" or "tanh".
        implementation: "reference" keeps the logits of all nodes [B T S V] in memory; "xla" keeps the logits of some
            frames and recomputes them for the gradient; "mosaic_tpu" is for outputs whose weights fit into VMEM beside
            the nodes of 16 frames.

    Returns:
        Log-probabilities of blanks and of labels in float32. They are 0 at padding, which has no gradient.
    """
    given = (frames, predictions, kernel, bias, labels)
    module = module_of(
        "transducer_joint",
        implementation,
        *given[:4],
        portable=("reference", "xla"),
        reason_against=partial(reason_against, given=given),
    )
    options = {"blank_id": blank_id, "activation": activation}
    if module not in (reference, xla):
        function = with_gradient(partial(module.forward, **options), partial(module.backward, **options))
        blank, label = function(*given, num_frames, num_labels)
    else:
        blank, label = module.joint(*given, **options)
    in_time = length_mask(num_frames, frames.shape[1])[..., None]
    positions = length_mask(num_labels + 1, predictions.shape[1])[:, None]
    blank = jnp.where(in_time & positions, blank, 0.0)
    return blank, jnp.where(in_time & positions[..., 1:], label, 0.0)


def reason_against(implementation: str, given: Sequence[Any]) -> str:
    """Returns the reason why a kernel cannot compute the joint network; empty if there is none.

    Args:
        given: Frames, predictions, weights, bias and labels, or descriptions of them.
    """
    if implementation != "mosaic_tpu":
        return ""
    from asr_jax.kernels.tiles_tpu import too_large
    from asr_jax.kernels.transducer_joint.mosaic_tpu import vmem_bytes  # late, as in `module_of`

    (_, positions, _), (width, vocab_size) = given[1].shape, given[2].shape
    what = f"weights of {width} × {vocab_size} and {positions} label positions in {given[2].dtype}"
    return too_large(vmem_bytes(*given), what)
