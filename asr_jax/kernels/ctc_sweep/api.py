"""The recursion of CTC over frames, with an implementation chosen for the device."""

import importlib.util
from typing import Literal

import jax
from jaxtyping import Array, Float, Int

from asr_jax.kernels.ctc_sweep import reference
from asr_jax.kernels.ctc_sweep.reference import States

Implementation = Literal["auto", "scan", "mosaic_tpu", "triton"]


def ctc_sweep(
    emissions: Float[Array, "T B N"],
    labels: Int[Array, "K B U"],
    label_lengths: Int[Array, " B"],
    *,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, " B"], States]:
    """Computes the forward variables of CTC in K directions.

    Direction 0 reads frames and labels from the start, direction 1 from the end: its forward variables are the backward
    variables. Directions have an axis of their own, which keeps the rows of a sharded batch on their devices. Blanks
    and labels are separate: blank u follows u labels; labels are numbered from 1, and label 0 does not exist.

    Source: Graves et al. 2006, "Connectionist temporal classification", equations 6-10.

    Args:
        emissions: Log-probabilities of the blank, the U labels and the blank again; at least `reference.NEVER`. Padding
            frames must emit the blank with probability 1.
        labels: Labels of each direction; direction 1 has them in reverse.
        label_lengths: Number of valid labels of each row.
        implementation: "scan" is a loop of XLA; "triton" is a kernel for NVIDIA GPUs, which needs the extra kernels;
            "mosaic_tpu" is a kernel for TPUs, for float32. "auto" is "scan", because no kernel was measured on a device
            yet.

    Returns:
        The log-probability of the labels, and the states of blanks and of labels before the frame's own emission, up to
        a constant per frame.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    if implementation in ("auto", "scan"):
        return reference.sweep(emissions, labels, label_lengths)
    if implementation == "mosaic_tpu":
        if emissions.dtype != jax.numpy.float32:
            raise ValueError(f"emissions have dtype {emissions.dtype}: expected float32 for mosaic_tpu")
        from asr_jax.kernels.ctc_sweep import mosaic_tpu  # imported late, because Pallas takes a second

        return mosaic_tpu.sweep(emissions, labels, label_lengths)
    if importlib.util.find_spec("jax_triton") is None:
        raise ValueError("implementation is triton, and jax-triton is not installed: pip install 'asr-jax[kernels]'")
    from asr_jax.kernels.ctc_sweep import triton

    return triton.sweep(emissions, labels, label_lengths)
