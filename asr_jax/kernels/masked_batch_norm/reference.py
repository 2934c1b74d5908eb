"""The reference implementation of the parts of batch norm over valid frames, and their signatures."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask

Sums = tuple[Float[Array, " D"], Float[Array, " D"]]


def masked_sums(x: Float[Array, "B T D"], lengths: Int[Array, " B"], shift: Float[Array, " D"] | None) -> Sums:
    """Computes the sums of x - shift and of its square over valid frames, in float32.

    Args:
        x: Frames. Padding may be NaN.
        lengths: Number of valid frames of each row, at most T.
        shift: Value of each channel that is subtracted; None: 0. The sum of squares is accurate for the mean or a value
            near it.
    """
    mask, deviation = length_mask(lengths, x.shape[1])[..., None], x.astype(jnp.float32)
    if shift is not None:
        deviation = deviation - shift[None, None]
    return jnp.sum(jnp.where(mask, deviation, 0), (0, 1)), jnp.sum(jnp.where(mask, deviation**2, 0), (0, 1))


def normalise(
    x: Float[Array, "B T D"], mean: Float[Array, " D"], scale: Float[Array, " D"], bias: Float[Array, " D"]
) -> Float[Array, "B T D"]:
    """Computes (x - mean) · scale + bias in the dtype of `x`."""
    mean, scale, bias = (each.astype(jnp.float32)[None, None] for each in (mean, scale, bias))
    return ((x.astype(jnp.float32) - mean) * scale + bias).astype(x.dtype)


def gradient_sums(
    x: Float[Array, "B T D"], dy: Float[Array, "B T D"], mean: Float[Array, " D"], inverse: Float[Array, " D"]
) -> Sums:
    """Computes the gradients of bias and gain: the sums over frames of dy, and of dy · (x - mean) · inverse.

    Args:
        x: Frames. Padding may be NaN where dy is 0.
        dy: Gradient with respect to the output.
        inverse: Inverse of the standard deviation of each channel.
    """
    dy = dy.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean[None, None]) * inverse[None, None]
    of_gain = jnp.sum(jnp.where(dy != 0, dy * unit, 0), (0, 1))  # x may be NaN in padding
    return jnp.sum(dy, (0, 1)), of_gain


def input_gradient(
    x: Float[Array, "B T D"],
    dy: Float[Array, "B T D"],
    lengths: Int[Array, " B"],
    mean: Float[Array, " D"],
    inverse: Float[Array, " D"],
    gain: Float[Array, " D"],
    sums: Sums,
    num: Float[Array, ""],
) -> Float[Array, "B T D"]:
    """Computes the gradient with respect to the input.

    dx = gain · inverse · (dy - (sums[0] + (x - mean) · inverse · sums[1]) / num) in valid frames, and
    dx = gain · inverse · dy in padding.

    Args:
        dy: Gradient with respect to the output.
        lengths: Number of valid frames of each row, at most T.
        inverse: Inverse of the standard deviation of each channel.
        sums: Results of `gradient_sums`, over all devices.
        num: Number of valid frames, over all devices.
    """
    mask, wide = length_mask(lengths, x.shape[1])[..., None], dy.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean[None, None]) * inverse[None, None]
    through = (sums[0][None, None] + unit * sums[1][None, None]) / num
    return ((gain * inverse)[None, None] * (wide - jnp.where(mask, through, 0))).astype(x.dtype)
