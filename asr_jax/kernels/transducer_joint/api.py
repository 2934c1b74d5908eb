"""The joint network of transducers and its log-probabilities, with an implementation chosen for the device."""

import functools
import importlib
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.kernels.implementations import check_computes, selected
from asr_jax.kernels.transducer_joint import reference, xla
from asr_jax.kernels.transducer_joint.reference import Activation

Implementation = Literal["auto", "reference", "xla", "mosaic_tpu", "triton"]


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
            frames and recomputes them for the gradient; "triton" is a kernel for NVIDIA GPUs, which needs the extra
            kernels; "mosaic_tpu" is a kernel for TPUs, for outputs whose weights fit into VMEM beside the
            nodes of 16 frames. "auto" is the one that the setting training.kernels selects, otherwise the one
            of `implementations.FASTEST`, otherwise "xla".

    Returns:
        Log-probabilities of blanks and of labels in float32. They are 0 at padding, which has no gradient.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    given = (frames, predictions, kernel, bias, labels)
    arrays, reason = given[:3], functools.partial(reason_against, given=given)
    name = selected("transducer_joint", implementation, "xla", *arrays, reason_against=reason)
    if name not in ("xla", "reference"):
        check_computes(name, "reference or xla", *arrays, reason_against=reason)
    if not all(each.size for each in given[:4]):  # a kernel needs at least one program, and a tile one node
        name = "reference"
    if name in ("xla", "reference"):
        joint: Any = reference.joint if name == "reference" else xla.joint
        blank, label = joint(*given, blank_id=blank_id, activation=activation)
    else:
        module = importlib.import_module(f"asr_jax.kernels.transducer_joint.{name}")  # late, as in `module_of`
        blank, label = module.joint(*given, num_frames, num_labels, blank_id, activation)
    in_time = length_mask(num_frames, frames.shape[1])[..., None]
    positions = length_mask(num_labels + 1, predictions.shape[1])[:, None]
    blank = jnp.where(in_time & positions, blank, 0.0)
    return blank, jnp.where(in_time & positions[..., 1:], label, 0.0)


def reason_against(implementation: str, given: Sequence[Any]) -> str:
    """Returns the reason why a kernel cannot compute the joint network; empty if there is none.

    Args:
        given: Frames, predictions, weights, bias and labels, or descriptions of them.
    """
    if implementation != "mosaic_tpu" or not all(
        each.size for each in given[:4]
    ):  # the reference computes empty arrays
        return ""
    from asr_jax.kernels.transducer_joint.mosaic_tpu import vmem_bytes  # late, as in `module_of`
    from asr_jax.kernels.vmem_tpu import too_large

    (_, positions, _), (width, vocab_size) = given[1].shape, given[2].shape
    what = f"weights of {width} × {vocab_size} and {positions} label positions in {given[2].dtype}"
    return too_large(vmem_bytes(*given), what)
