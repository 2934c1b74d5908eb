"""Bias norm, with an implementation chosen for the device."""

from typing import Literal

from jaxtyping import Array, Float

from asr_jax.kernels.bias_norm import reference
from asr_jax.kernels.implementations import check_device

Implementation = Literal["auto", "reference", "mosaic_tpu", "triton"]


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
        bias: Bias of each channel.
        log_scale: Logarithm of the scale.
        implementation: "reference" is a program of XLA; "triton" is a kernel for NVIDIA GPUs, which needs the extra
            kernels; "mosaic_tpu" is a kernel for TPUs. "auto" is "reference", because no kernel was measured on a
            device yet.

    Returns:
        Normalised values in the dtype of `x`. Sums are in float32.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    if implementation in ("auto", "reference"):
        return reference.bias_norm(x, bias, log_scale)
    check_device(implementation, "reference")
    rows = x.reshape(-1, x.shape[-1])
    if implementation == "triton":
        from asr_jax.kernels.bias_norm import triton

        return triton.bias_norm(rows, bias, log_scale).reshape(x.shape)
    from asr_jax.kernels.bias_norm import mosaic_tpu  # imported late, because Pallas takes a second

    return mosaic_tpu.bias_norm(rows, bias, log_scale).reshape(x.shape)
