"""Parts of batch norm over valid frames, with an implementation chosen for the device.

Forward: `masked_sums`, then `normalise`. Backward: `gradient_sums`, then `input_gradient`. On several devices, sums are
added over the devices in between; `nn.normalization.masked_batch_norm` composes the parts.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.implementations import Implementation, module_of
from asr_jax.kernels.masked_batch_norm.reference import Sums


def masked_sums(
    x: Float[Array, "B T D"],
    lengths: Int[Array, " B"],
    shift: Float[Array, " D"] | None = None,
    *,
    implementation: Implementation = "auto",
) -> Sums:
    """Computes the sums of x - shift and of its square over valid frames, in float32.

    Args:
        x: Frames. Padding may be NaN.
        lengths: Number of valid frames of each row, at most T; larger ones count as T.
        shift: Value of each channel that is subtracted; None: 0. The sum of squares is accurate for the mean or a value
            near it.
        implementation: See `Implementation`.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    lengths = jnp.minimum(lengths, x.shape[1])
    return module_of("masked_batch_norm", implementation, given=x).masked_sums(x, lengths, shift)


def normalise(
    x: Float[Array, "B T D"],
    mean: Float[Array, " D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "B T D"]:
    """Computes (x - mean) · scale + bias in the dtype of `x`.

    Args:
        implementation: See `Implementation`.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    return module_of("masked_batch_norm", implementation, given=x).normalise(x, mean, scale, bias)


def gradient_sums(
    x: Float[Array, "B T D"],
    dy: Float[Array, "B T D"],
    mean: Float[Array, " D"],
    inverse: Float[Array, " D"],
    *,
    implementation: Implementation = "auto",
) -> Sums:
    """Computes the gradients of bias and gain: the sums over frames of dy, and of dy · (x - mean) · inverse.

    Args:
        x: Frames. Padding may be NaN where dy is 0.
        dy: Gradient with respect to the output.
        inverse: Inverse of the standard deviation of each channel.
        implementation: See `Implementation`.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    return module_of("masked_batch_norm", implementation, given=x).gradient_sums(x, dy, mean, inverse)


def input_gradient(
    x: Float[Array, "B T D"],
    dy: Float[Array, "B T D"],
    lengths: Int[Array, " B"],
    mean: Float[Array, " D"],
    inverse: Float[Array, " D"],
    gain: Float[Array, " D"],
    sums: Sums,
    num: Float[Array, ""],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "B T D"]:
    """Computes the gradient with respect to the input.

    dx = gain · inverse · (dy - (sums[0] + (x - mean) · inverse · sums[1]) / num) in valid frames, and
    dx = gain · inverse · dy in padding.

    Args:
        dy: Gradient with respect to the output.
        lengths: Number of valid frames of each row, at most T; larger ones count as T.
        inverse: Inverse of the standard deviation of each channel.
        sums: Results of `gradient_sums`, over all devices.
        num: Number of valid frames, over all devices.
        implementation: See `Implementation`.

    Raises:
        ValueError: If the implementation cannot run here.
    """
    given = (x, dy, jnp.minimum(lengths, x.shape[1]), mean, inverse, gain, sums, num)
    return module_of("masked_batch_norm", implementation, given=x).input_gradient(*given)
