"""What a depthwise convolution is: XLA's grouped convolution with one channel per group."""

import jax
from jaxtyping import Array, Float

Padding = tuple[tuple[int, int], tuple[int, int]]


def depthwise_conv_lax(
    x: Float[Array, "B T F C"], kernel: Float[Array, "K L D"], *, padding: Padding
) -> Float[Array, "B S G D"]:
    """y[b, t, f, d] = Σ_kl kernel[k, l, d] · x[b, t + k - left_t, f + l - left_f, d], x being 0 outside.

    C is D, or 1: then all filters see the one channel.
    """
    return jax.lax.conv_general_dilated(
        x,
        kernel[:, :, None, :],
        window_strides=(1, 1),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )
