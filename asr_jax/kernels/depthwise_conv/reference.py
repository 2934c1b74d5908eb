"""The reference implementation of depthwise convolution: XLA's grouped convolution with one channel per group."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


@dataclass(frozen=True)
class Window:
    """Padding, strides and dilations for time and frequency."""

    padding: Padding
    """Left and right padding in time, and in frequency. Negative padding crops."""
    strides: Pair
    """Strides in time and frequency."""
    dilations: Pair
    """Dilations in time and frequency."""


def conv(x: Float[Array, "B T F C"], kernel: Float[Array, "K L D"], *, window: Window) -> Float[Array, "B S G D"]:
    """Computes `api.depthwise_conv_2d`.

    y[b, t, f, d] = Σ_kl kernel[k, l, d] · x[b, s_t·t + d_t·k - left_t, s_f·f + d_f·l - left_f, d], with strides s and
    dilations d, where x is 0 outside of its frames and bins.
    """
    return jax.lax.conv_general_dilated(
        x,
        kernel[:, :, None, :],
        window_strides=window.strides,
        padding=window.padding,
        rhs_dilation=window.dilations,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


def gradients(
    x: Float[Array, "B T F C"], kernel: Float[Array, "K L D"], dy: Float[Array, "B S G D"], *, window: Window
) -> tuple[Float[Array, "B T F C"], Float[Array, "K L D"]]:
    """Computes the gradients of `conv` with respect to `x` and `kernel`.

    Args:
        dy: Gradient with respect to the output.
    """
    (dx,) = jax.linear_transpose(lambda x: conv(x, kernel, window=window), x)(dy)
    (dk,) = jax.linear_transpose(lambda kernel: conv(x, kernel, window=window), kernel)(dy)
    return dx, dk
