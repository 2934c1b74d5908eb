"""Bias norm, with an implementation chosen for the device."""

import math

from jaxtyping import Array, Float

from asr_jax.kernels.implementations import Implementation, module_of


def bias_norm(
    x: Float[Array, "*rest D"],
    bias: Float[Array, " D"],
    log_scale: Float[Array, ""],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "*rest D"]:
    """Computes bias norm: x · exp(log_scale) / RMS(x - bias) over the last axis.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.3.

    Args:
        x: Values, of which the last axis is normalised.
        implementation: An `Implementation`.

    Returns:
        Normalised values in the dtype of `x`. Sums are in float32.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    found: Array = module_of("bias_norm", implementation, given=x).bias_norm(rows, bias, log_scale)
    return found.reshape(x.shape)
