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
    """Computes bias norm over the last axis: x · exp(log_scale) / RMS(x - bias), in the dtype of `x`.

    Sums are in float32. Source: Yao et al. 2023 (arXiv:2310.11230), section 3.3.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    found: Array = module_of("bias_norm", implementation, x).bias_norm(rows, bias, log_scale)
    return found.reshape(x.shape)
