"""Batch norm over the valid frames of all devices, with an implementation chosen for the device.

The modules of the implementations have its parts. Forward: `masked_sums`, then `normalise`. Backward: `gradient_sums`,
then `input_gradient`. Sums are added over the devices in between.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from asr_jax.core.collectives import total
from asr_jax.kernels.gradients import SAVED, with_gradient
from asr_jax.kernels.implementations import Implementation, module_of


def batch_norm(
    x: Float[Array, "B T D"],
    mean: Float[Array, " D"],
    variance: Float[Array, " D"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"],
    eps: float,
    implementation: Implementation = "auto",
) -> Float[Array, "B T D"]:
    """Computes (x - mean) · gain / √(variance + eps) + bias in the dtype of `x`."""
    scale = gain * jax.lax.rsqrt(variance + eps)
    return module_of("masked_batch_norm", implementation, x).normalise(x, mean, scale, bias)


def masked_batch_norm(
    x: Float[Array, "B T D"],
    lengths: Int[Array, " B"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"],
    eps: float,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "B T D"], Float[Array, " D"], Float[Array, " D"]]:
    """Normalises frames by the statistics of the valid frames of all devices.

    The derivative reads the frames twice. An automatic one reads them five times and stores several arrays of their
    size.

    Args:
        x: Frames. Padding may be NaN where the gradient of the output is 0.
        lengths: Number of valid frames of each row; numbers above T count as T.
        eps: Constant that is added to the variance.

    Returns:
        The output of batch norm in training, and the batch's mean and biased variance, which have no gradient.
    """
    module = module_of("masked_batch_norm", implementation, x)

    def forward(x: Array, lengths: Array, gain: Array, bias: Array) -> tuple[Any, Any]:
        num = _number(lengths)
        mean = checkpoint_name(total(module.masked_sums(x, lengths, None)[0]) / num, SAVED)
        variance = checkpoint_name(total(module.masked_sums(x, lengths, mean)[1]) / num, SAVED)
        y = batch_norm(x, mean, variance, gain, bias, eps, implementation)
        return (y, mean, variance), (x, lengths, gain, mean, variance)

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        (x, lengths, gain, mean, variance), dy = kept, cotangents[0]
        inverse = jax.lax.rsqrt(variance + eps)
        of_bias, of_gain = module.gradient_sums(x, dy, mean, inverse)
        dx = module.input_gradient(x, dy, lengths, mean, inverse, gain, total((of_bias, of_gain)), _number(lengths))
        return dx, None, of_gain, of_bias

    return with_gradient(forward, backward)(x, jnp.minimum(lengths, x.shape[1]), gain, bias)


def _number(lengths: Array) -> Float[Array, ""]:
    """Returns the number of valid frames on all devices, at least 1."""
    return jnp.maximum(total(jnp.sum(lengths)), 1).astype(jnp.float32)
