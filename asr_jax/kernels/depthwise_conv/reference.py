"""The reference implementation of depthwise convolution: XLA's grouped convolution with one channel per group."""

import jax
from jaxtyping import Array, Float

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def depthwise_conv_lax(
    x: Float[Array, "B T F C"],
    kernel: Float[Array, "K L D"],
    *,
    padding: Padding,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
) -> Float[Array, "B S G D"]:
    """Computes a depthwise convolution over time and frequency.

    y[b, t, f, d] = Σ_kl kernel[k, l, d] · x[b, s_t·t + d_t·k - left_t, s_f·f + d_f·l - left_f, d], with strides s and
    dilations d, where x is 0 outside of its frames and bins.

    Args:
        x: Input of T frames, F bins and C channels. C is D, or 1: then all filters are applied to the one channel.
        kernel: D filters of K taps in time and L taps in frequency.
        padding: Left and right padding in time, and in frequency.
        strides: Strides in time and frequency.
        dilations: Dilations in time and frequency.
    """
    return jax.lax.conv_general_dilated(
        x,
        kernel[:, :, None, :],
        window_strides=strides,
        padding=padding,
        rhs_dilation=dilations,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )
