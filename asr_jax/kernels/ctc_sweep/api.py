"""The recursion of CTC over frames, with an implementation chosen for the device."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.ctc_sweep.reference import States
from asr_jax.kernels.implementations import Implementation, module_of


def ctc_sweep(
    emissions: Float[Array, "T B N"],
    labels: Int[Array, "K B U"],
    label_lengths: Int[Array, " B"],
    blank_bonus: Float[Array, "K B U+1"] | None = None,
    *,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, " B"], States]:
    """Computes the forward variables of CTC in K directions.

    Direction 0 reads frames and labels from the start, direction 1 from the end: its forward variables are the backward
    variables. Directions have an axis of their own, which keeps the rows of a sharded batch on their devices. Blanks
    and labels are separate: blank u follows u labels; labels are numbered from 1, and label 0 does not exist.

    Source: Graves et al. 2006, "Connectionist temporal classification", equations 6-10.

    Args:
        emissions: Log-probabilities of the blank, the U labels and the blank again; at least `log_space.NEVER`. Padding
            frames must emit the blank with probability 1.
        labels: Labels of each direction; direction 1 has them in reverse.
        label_lengths: Number of valid labels of each row.
        blank_bonus: Value that is added to the log-probability of the blank in all frames, by the number of labels
            before it in the order of each direction. It must be 0 after the last label. None: 0.
        implementation: "mosaic_tpu" is for float32.

    Returns:
        The log-probability of the labels, and the states of blanks and of labels before the frame's own emission, up to
        a constant per frame.
    """

    def reason_against(name: str) -> str:
        low = name == "mosaic_tpu" and emissions.dtype != jnp.float32
        return f"emissions have dtype {emissions.dtype}: expected float32" if low else ""

    module = module_of("ctc_sweep", implementation, emissions, reason_against=reason_against)
    return module.sweep(emissions, labels, label_lengths, blank_bonus)
