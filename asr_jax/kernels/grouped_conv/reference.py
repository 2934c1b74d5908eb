"""The reference implementation of grouped convolution: XLA's convolution."""

import jax
from jaxtyping import Array, Float


def grouped_conv_lax(x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, groups: int) -> Float[Array, "B T E"]:
    """Computes a grouped convolution over time: y[t] = Σ_k x[t + k - K // 2] W[k], where x is 0 outside of its frames.

    Args:
        x: Input of T frames and D channels.
        kernel: Filters W of K taps, C input channels per group, and E output channels.
        groups: Number of groups of channels.
    """
    taps = len(kernel)
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding=((taps // 2, (taps - 1) // 2),),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )
